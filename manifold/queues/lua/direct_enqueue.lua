-- direct_enqueue.lua: queue the single entry of a trigger for this owner and wake a dispatcher, unless the queues are incomplete
-- or the trigger is a duplicate. This takes one round trip instead of three. It is not for a cluster, because the last three keys
-- belong to no owner.
-- KEYS[8] queues:loaded   KEYS[9] dedupe key of the trigger's digest   KEYS[10] the owner's wake-up stream
-- ARGV[6] '1' with compaction   ARGV[7] seq   ARGV[8] request_id   ARGV[9] owner   ARGV[10] data_id
-- ARGV[11] value of KEYS[8] when the recorder checked the queues; another value means that the queues were reloaded since
-- returns the reply of enqueue.lua, or {'unloaded', 0} or {'duplicate', 0}, with which nothing has changed
if redis.call('GET', KEYS[8]) ~= ARGV[11] then return {'unloaded', 0} end
if redis.call('GET', KEYS[9]) ~= ARGV[7] then return {'duplicate', 0} end
local compaction_key = nil
if ARGV[6] == '1' then compaction_key = ARGV[8] end
local reply = enqueue({ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], compaction_key})
if reply[1] == 'ready' then
  redis.call('XADD', KEYS[10], '*', 'owners', ARGV[9], 'trigger', ARGV[7] .. ' ' .. ARGV[8] .. ' ' .. ARGV[10])
end
return reply
