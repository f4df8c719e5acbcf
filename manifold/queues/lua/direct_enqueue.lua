-- direct_enqueue.lua: queue the one entry that a trigger has for this owner, unless the queues lack something or the trigger repeats another,
-- and wake a dispatcher: what takes three round trips for many owners, in one. Not for a cluster: the last three keys are nobody's.
-- KEYS[8] queues:loaded   KEYS[9] the registration of the trigger's digest   KEYS[10] the owner's wake-up stream
-- ARGV[6] '1' where compaction is on   ARGV[7] seq   ARGV[8] request_id   ARGV[9] owner   ARGV[10] data_id
-- ARGV[11] what KEYS[8] held when the recorder looked what the queues lack: another value says that they were loaded anew since
-- returns what enqueue.lua returns, or {'unloaded', 0}, or {'duplicate', 0}: then nothing was changed
if redis.call('GET', KEYS[8]) ~= ARGV[11] then return {'unloaded', 0} end
if redis.call('GET', KEYS[9]) ~= ARGV[7] then return {'duplicate', 0} end
local compacting = ARGV[6] == '1'
local answer = enqueue({ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], compacting and ARGV[8] or nil})
if answer[1] == 'ready' then
  redis.call('XADD', KEYS[10], '*', 'owners', ARGV[9], 'trigger', ARGV[7] .. ' ' .. ARGV[8] .. ' ' .. ARGV[10])
end
return answer
