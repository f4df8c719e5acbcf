-- ecq_direct_append.lua: append, unless the queues lack something, and wake a dispatcher: in one round trip. Not for a cluster: the last
-- two keys are nobody's.
-- KEYS[9] queues:loaded   KEYS[10] the queue's wake-up stream
-- ARGV[6] seq   ARGV[7] key   ARGV[8] payload   ARGV[9] name of the queue   ARGV[10] what KEYS[9] held when the recorder looked what the
-- queues lack: another value says that they were loaded anew since
-- returns what ecq_append.lua returns, or {'unloaded', 0}: then nothing was changed
if redis.call('GET', KEYS[9]) ~= ARGV[10] then return {'unloaded', 0} end
local answer = ecq_append(ARGV)
if answer[1] == 'ready' then redis.call('XADD', KEYS[10], '*', 'owners', ARGV[9]) end
return answer
