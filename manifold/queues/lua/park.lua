-- park.lua: park the entry in flight, whose data has not arrived, and claim the next entry. If the entry is already parked, only
-- claim.
-- ARGV[6] seq   ARGV[7] time of the claim to park, or '' for any
-- returns {'parked' | 'stale' | 'sent', claim's reply…}; 'sent' says that no other entry may overtake this one yet, so that
-- nothing was parked or claimed
local seq = ARGV[6]
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'published_at')
local is_held = held[1] == seq
if is_held and ARGV[7] ~= '' and held[3] ~= ARGV[7] then return {'stale', 'none'} end
-- If the reply of an earlier call was lost, the repeated call gets the same reply, or the entry that was claimed.
local sent = put_back_if_sent(seq, is_held, held[2])
if sent then return {'sent', unpack(sent)} end
if not is_held then
  if redis.call('ZSCORE', PARKED, seq) then return {'parked', unpack(claim())} end
  return {'stale', 'none'}
end
put_back(seq, tonumber(held[2]) - 1) -- this attempt does not count, because the entry was not published
redis.call('ZREM', PENDING, seq)
redis.call('ZADD', PARKED, seq, seq)
return {'parked', unpack(claim())}
