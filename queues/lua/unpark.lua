-- unpark.lua: data has come: all parked entries of this owner take their places again; one whose data is still missing steps aside again.
-- ARGV[1] now_ms   ARGV[2] presence_ms
-- returns {word, how many}; word: 'ready' (wake a dispatcher), 'queued' or 'known' (none was parked)
local seqs = redis.call('ZRANGE', PARKED, 0, -1)
for _, seq in ipairs(seqs) do redis.call('ZADD', PENDING, seq, seq) end
redis.call('DEL', PARKED)
local word = 'known'
if #seqs > 0 then
  local ready = redis.call('EXISTS', INFLIGHT) == 0 and whereabouts(tonumber(ARGV[1]), tonumber(ARGV[2])) == 'here'
  word = ready and 'ready' or 'queued'
end
return {word, #seqs}
