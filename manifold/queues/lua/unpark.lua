-- unpark.lua: put parked entries back to pending, in seq order, because their data has arrived. If the data of an entry is still
-- missing, a dispatcher parks the entry again.
-- ARGV[6…] seqs of the entries; without any, all parked entries of this owner
-- returns {word, number of entries put back}, where word is 'ready' (the vehicle is present and subscribed, something is pending
-- and nothing is in flight: wake a dispatcher), 'queued' or 'known' (none of the entries was parked)
local seqs, queued = {}, 0
for i = 6, #ARGV do seqs[i - 5] = ARGV[i] end
if #seqs == 0 then seqs = redis.call('ZRANGE', PARKED, 0, -1) end
for _, seq in ipairs(seqs) do
  if redis.call('ZREM', PARKED, seq) == 1 then
    redis.call('ZADD', PENDING, seq, seq)
    queued = queued + 1
  end
end

local can_claim = presence_state(tonumber(ARGV[1]), tonumber(ARGV[2])) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
local word = 'known'
-- Return 'ready' even if nothing was put back, because an earlier caller may have crashed before it woke a dispatcher.
if can_claim and (queued > 0 or redis.call('EXISTS', PENDING) == 1) then
  word = 'ready'
elseif queued > 0 then
  word = 'queued'
end
return {word, queued}
