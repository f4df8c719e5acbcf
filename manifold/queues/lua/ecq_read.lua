-- ecq_read.lua: scan some live messages, in any order, and read the state of the queue. Changes nothing.
-- ARGV[6] cursor, '0' to begin   ARGV[7] approximate number of keys to scan; the scan blocks Redis
-- returns {acked_seq or '', acked_at or '', epoch, seq in flight or '', cursor ('0' at the end),
--   {key, seq, payload size or '', 'pending' | 'delivered', …}, time of the last expiry or ''}
-- A message that changes during the scan may be returned twice.
local state = redis.call('HMGET', STATE, 'acked_seq', 'acked_at', 'epoch', 'expired_at')
local some = redis.call('HSCAN', COMPACTION, ARGV[6], 'COUNT', ARGV[7])
local live, found = some[2], {}
for i = 1, #live, 2 do
  local key, seq = live[i], live[i + 1]
  local length = redis.call('HSTRLEN', MESSAGES, seq)
  local n = #found
  found[n + 1], found[n + 2] = key, seq
  found[n + 3] = length > 0 and length - #key - 1 or ''
  found[n + 4] = redis.call('ZSCORE', DELIVERED, seq) and 'delivered' or 'pending'
end
return {state[1] or '', state[2] or '', state[3] or '0', redis.call('HGET', INFLIGHT, 'seq') or '', some[1], found,
  state[4] or ''}
