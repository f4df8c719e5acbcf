-- ecq_append.lua: a message becomes the live one of its key, unless a newer one is. Offered again, nothing changes.
-- ARGV[6] seq   ARGV[7] key   ARGV[8] payload
-- returns {word, how many were new, how many these superseded}; word: 'ready' (the client is here, subscribed, and has nothing in flight: wake
-- a dispatcher), 'queued', or 'known' (not new, or superseded already)
local seq, key = ARGV[6], ARGV[7]
local newest, queued, superseded = redis.call('HGET', COMPACTION, key), 0, 0
if newest == seq then
  -- Also the message, where a rebuild has brought the rest.
  if redis.call('HEXISTS', MESSAGES, seq) == 0 then redis.call('HSET', MESSAGES, seq, key .. '\0' .. ARGV[8]) end
elseif not newest or older(newest, seq) then
  redis.call('HSET', COMPACTION, key, seq)
  redis.call('HSET', MESSAGES, seq, key .. '\0' .. ARGV[8])
  if newest then
    supersede(newest)
    superseded = 1
  end
  if not redis.call('ZSCORE', DELIVERED, seq) then -- it may have been acknowledged to a Redis that was wiped since
    redis.call('ZADD', PENDING, seq, seq)
    queued = 1
  end
end
-- Also where nothing was new: whoever offered it first may have died before anyone was woken.
return {is_ready() and 'ready' or queued > 0 and 'queued' or 'known', queued, superseded}
