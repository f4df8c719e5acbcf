-- ecq_read.lua: all that is live, and how it stands. Changes nothing.
-- returns {acked_seq or '', acked_at or '', epoch, seq in flight or '', {key, seq, size of the payload or '', 'pending' | 'delivered', …}}
local state = redis.call('HMGET', STATE, 'acked_seq', 'acked_at', 'epoch')
local live, found = redis.call('HGETALL', COMPACTION), {}
for i = 1, #live, 2 do
  local key, seq = live[i], live[i + 1]
  local length = redis.call('HSTRLEN', MESSAGES, seq)
  local n = #found
  found[n + 1], found[n + 2] = key, seq
  found[n + 3] = length > 0 and length - #key - 1 or ''
  found[n + 4] = redis.call('ZSCORE', DELIVERED, seq) and 'delivered' or 'pending'
end
return {state[1] or '', state[2] or '', state[3] or '0', redis.call('HGET', INFLIGHT, 'seq') or '', found}
