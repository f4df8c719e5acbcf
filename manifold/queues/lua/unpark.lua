-- unpark.lua: put parked entries whose data has arrived back to pending, in seq order; one whose data is still missing is parked
-- again.
-- ARGV[6…] seqs of the entries; none: all of this owner
-- returns {word, number of entries}; word: 'ready' (the vehicle is here, something is pending and nothing is in flight: wake a
-- dispatcher), 'queued' or 'known' (none of them was parked)
local seqs, moved = {}, 0
for i = 6, #ARGV do seqs[i - 5] = ARGV[i] end
if #seqs == 0 then seqs = redis.call('ZRANGE', PARKED, 0, -1) end
for _, seq in ipairs(seqs) do
  if redis.call('ZREM', PARKED, seq) == 1 then
    redis.call('ZADD', PENDING, seq, seq)
    moved = moved + 1
  end
end
-- Even if nothing moved: an earlier caller may have crashed before the wake.
local ready = presence_state(tonumber(ARGV[1]), tonumber(ARGV[2])) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
ready = ready and (moved > 0 or redis.call('EXISTS', PENDING) == 1)
return {ready and 'ready' or moved > 0 and 'queued' or 'known', moved}
