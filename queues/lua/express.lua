-- express.lua: queue the one entry that a trigger has for this owner, unless the queues lack something or the trigger repeats another,
-- and wake a dispatcher: what takes three round trips for many owners, in one. Not for a cluster: the last three keys are nobody's.
-- KEYS[8] queues:loaded   KEYS[9] the registration of the trigger's digest   KEYS[10] the owner's wake-up stream
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] '1' where compaction is on   ARGV[4] seq   ARGV[5] owner   ARGV[6] request_id   ARGV[7] data_id
-- ARGV[8] what KEYS[8] held when the recorder looked what the queues lack: another value says that they were loaded anew since
-- returns what enqueue.lua returns, or {'unloaded', 0}, or {'duplicate', 0}: then nothing was changed
if redis.call('GET', KEYS[8]) ~= ARGV[8] then return {'unloaded', 0} end
if redis.call('GET', KEYS[9]) ~= ARGV[4] then return {'duplicate', 0} end
local answer = enqueue(ARGV[3] == '1' and {ARGV[1], ARGV[2], '1', ARGV[4], ARGV[6]} or {ARGV[1], ARGV[2], '0', ARGV[4]})
if answer[1] == 'ready' then
  redis.call('XADD', KEYS[10], '*', 'owners', ARGV[5], 'trigger', ARGV[4] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
end
return answer
