-- ecq_append.lua: make a message the live one of its key, unless the key has a newer message. Idempotent.
-- ARGV[6] seq   ARGV[7] key   ARGV[8] payload
-- returns {word, number of new messages, number of superseded messages}, where word is 'ready' (the client is present and
-- subscribed, and nothing is in flight: wake a dispatcher), 'queued', or 'known' (the message is not new, or superseded already)
local seq, key, message = ARGV[6], ARGV[7], ARGV[7] .. '\0' .. ARGV[8]
local newest, queued, superseded = redis.call('HGET', COMPACTION, key), 0, 0
if newest == seq then
  -- A rebuild loads messages without their payloads. Add the payload now.
  if redis.call('HEXISTS', MESSAGES, seq) == 0 then redis.call('HSET', MESSAGES, seq, message) end
elseif not newest or older(newest, seq) then
  redis.call('HSET', COMPACTION, key, seq)
  redis.call('HSET', MESSAGES, seq, message)
  if newest then
    supersede(newest)
    superseded = 1
  end
  if not redis.call('ZSCORE', DELIVERED, seq) then -- after Redis has lost data, its acknowledgement may come first
    redis.call('ZADD', PENDING, seq, seq)
    queued = 1
  end
end

local word = 'known'
if is_ready() then -- even if nothing is new, because an earlier caller may have crashed before it woke a dispatcher
  word = 'ready'
elseif queued > 0 then
  word = 'queued'
end
return {word, queued, superseded}
