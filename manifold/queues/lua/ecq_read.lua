-- ecq_read.lua: scan some live messages, in any order, and read the state of the queue. Changes nothing.
-- ARGV[6] cursor, '0' to begin   ARGV[7] approximate number of keys to scan; the scan blocks Redis
-- returns {acked_seq or '', acked_at or '', epoch, seq in flight or '', cursor ('0' at the end),
--   {key, seq, payload size or '', 'pending' | 'delivered', …}, time of the last expiry or ''}
-- A message that changes during the scan may be returned twice.
local acked_seq, acked_at, epoch, expired_at =
  unpack(redis.call('HMGET', STATE, 'acked_seq', 'acked_at', 'epoch', 'expired_at'))
local cursor, keys_and_seqs = unpack(redis.call('HSCAN', COMPACTION, ARGV[6], 'COUNT', ARGV[7]))
local found = {}
for i = 1, #keys_and_seqs, 2 do
  local key, seq = keys_and_seqs[i], keys_and_seqs[i + 1]
  local length = redis.call('HSTRLEN', MESSAGES, seq)
  local n = #found
  found[n + 1], found[n + 2] = key, seq
  found[n + 3] = length > 0 and length - #key - 1 or ''
  found[n + 4] = redis.call('ZSCORE', DELIVERED, seq) and 'delivered' or 'pending'
end
local held_seq = redis.call('HGET', INFLIGHT, 'seq')
return {acked_seq or '', acked_at or '', epoch or '0', held_seq or '', cursor, found, expired_at or ''}
