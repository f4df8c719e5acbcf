-- ecq_direct_append.lua: append a message and wake a dispatcher in one round trip, unless the queues are incomplete. It is not
-- for a cluster, because the last two keys belong to no owner.
-- KEYS[9] queues:loaded   KEYS[10] the queue's wake-up stream
-- ARGV[6] seq   ARGV[7] key   ARGV[8] payload   ARGV[9] name of the queue
-- ARGV[10] value of KEYS[9] when the recorder checked the queues; another value means that the queues were reloaded since
-- returns the reply of ecq_append.lua, or {'unloaded', 0}, with which nothing has changed
if redis.call('GET', KEYS[9]) ~= ARGV[10] then return {'unloaded', 0} end
local reply = ecq_append(ARGV)
if reply[1] == 'ready' then redis.call('XADD', KEYS[10], '*', 'owners', ARGV[9]) end
return reply
