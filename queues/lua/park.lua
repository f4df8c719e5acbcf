-- park.lua: the data of the entry in flight has not come: it steps aside, and the next one is claimed. Parked already, it claims, too.
-- ARGV[6] seq
-- returns {'parked' | 'stale', claim's answer…}
local seq = ARGV[6]
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts')
if held[1] ~= seq then
  -- The answer may have been lost: whoever asks again is told what was claimed.
  if redis.call('ZSCORE', PARKED, seq) then return {'parked', unpack(claim())} end
  return {'stale', 'none'}
end
put_back(seq, tonumber(held[2]) - 1) -- it was not published
redis.call('ZREM', PENDING, seq)
redis.call('ZADD', PARKED, seq, seq)
return {'parked', unpack(claim())}
