-- ecq_erase.lua: remove all messages with seqs less than a given one from the queue, in any state.
-- ARGV[6] the given seq   returns the number of removed messages
local before, removed = ARGV[6], 0
for _, queue in ipairs({PENDING, DELIVERED}) do
  for _, seq in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    if older(seq, before) then removed = removed + redis.call('ZREM', queue, seq) end
  end
end
for _, hash in ipairs({MESSAGES, ATTEMPTS}) do
  for _, seq in ipairs(redis.call('HKEYS', hash)) do
    if older(seq, before) then redis.call('HDEL', hash, seq) end
  end
end
local keys_and_seqs = redis.call('HGETALL', COMPACTION)
for i = 1, #keys_and_seqs, 2 do
  if older(keys_and_seqs[i + 1], before) then redis.call('HDEL', COMPACTION, keys_and_seqs[i]) end
end
local held_seq = redis.call('HGET', INFLIGHT, 'seq')
if held_seq and older(held_seq, before) then redis.call('DEL', INFLIGHT) end
if redis.call('EXISTS', PENDING, COMPACTION, INFLIGHT) == 0 then redis.call('DEL', STATE, DELIVERED) end
return removed
