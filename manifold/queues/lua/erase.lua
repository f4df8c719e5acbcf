-- erase.lua: remove all entries with seqs less than a given one from the owner's keys, in any state and without outcomes.
-- ARGV[6] the given seq
-- returns the number of removed entries, including ended ones
local before, removed = ARGV[6], 0

for _, queue in ipairs({PENDING, PARKED, DONE}) do
  for _, seq in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    if older(seq, before) then
      removed = removed + redis.call('ZREM', queue, seq)
      redis.call('HDEL', ATTEMPTS, seq, outcome_field(seq))
    end
  end
end
for _, field in ipairs(redis.call('HKEYS', ATTEMPTS)) do -- a seq, or the `outcome_field` of one
  if older(string.match(field, '^%d+') or field, before) then redis.call('HDEL', ATTEMPTS, field) end
end
local held_seq = redis.call('HGET', INFLIGHT, 'seq')
if held_seq and older(held_seq, before) then redis.call('DEL', INFLIGHT) end
local keys_and_seqs = redis.call('HGETALL', COMPACTION)
for i = 1, #keys_and_seqs, 2 do
  if older(keys_and_seqs[i + 1], before) then redis.call('HDEL', COMPACTION, keys_and_seqs[i]) end
end
if redis.call('EXISTS', PENDING, PARKED, INFLIGHT, DONE) == 0 then redis.call('DEL', PRESENCE) end
return removed
