-- ecq_append.lua: make a message the live one of its key, unless a newer one is. Idempotent.
-- ARGV[6] seq   ARGV[7] key   ARGV[8] payload
-- returns {word, number of new messages, number of messages they superseded}; word: 'ready' (the client is here and subscribed,
-- and nothing is in flight: wake a dispatcher), 'queued', or 'known' (not new, or already superseded)
local seq, key = ARGV[6], ARGV[7]
local newest, queued, superseded = redis.call('HGET', COMPACTION, key), 0, 0
if newest == seq then
  -- A rebuild loads the rest without the payload.
  if redis.call('HEXISTS', MESSAGES, seq) == 0 then redis.call('HSET', MESSAGES, seq, key .. '\0' .. ARGV[8]) end
elseif not newest or older(newest, seq) then
  redis.call('HSET', COMPACTION, key, seq)
  redis.call('HSET', MESSAGES, seq, key .. '\0' .. ARGV[8])
  if newest then
    supersede(newest)
    superseded = 1
  end
  if not redis.call('ZSCORE', DELIVERED, seq) then -- it may have been acknowledged before Redis was wiped
    redis.call('ZADD', PENDING, seq, seq)
    queued = 1
  end
end
-- Even if nothing is new: an earlier caller may have crashed before the wake.
return {is_ready() and 'ready' or queued > 0 and 'queued' or 'known', queued, superseded}
