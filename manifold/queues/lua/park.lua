-- park.lua: park the entry in flight, whose data has not arrived, and claim the next entry. If the entry is already parked, only
-- claim.
-- ARGV[6] seq   ARGV[7] time of the claim to park, or '' for any
-- returns {'parked' | 'stale' | 'sent', claim's reply…}; 'sent' says that no other entry may overtake this one yet, so that
-- nothing was parked or claimed
local seq, claimed_at = ARGV[6], ARGV[7]
local held_seq, attempts, published_at = unpack(redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'published_at'))
local is_in_flight = held_seq == seq
if is_in_flight and claimed_at ~= '' and published_at ~= claimed_at then return {'stale', 'none'} end
-- If the reply of an earlier call was lost, the repeated call gets the same reply, or the entry that was claimed.
local busy = put_back_if_sent(seq, is_in_flight, attempts)
if busy then return {'sent', unpack(busy)} end
if not is_in_flight then
  if redis.call('ZSCORE', PARKED, seq) then return {'parked', unpack(claim())} end
  return {'stale', 'none'}
end
put_back(seq, tonumber(attempts) - 1) -- this attempt does not count, because the entry was not published
redis.call('ZREM', PENDING, seq)
redis.call('ZADD', PARKED, seq, seq)
return {'parked', unpack(claim())}
