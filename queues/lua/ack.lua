-- ack.lua: an entry has ended; take it out for good and claim the next one. Any outcome ends an entry this way.
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] milliseconds that each attempt has   ARGV[4] seq   ARGV[5] compaction key or ''
-- ARGV[6] '1' to claim the next entry
-- returns {word, published_at_ms or '', attempts or '', claim's answer…}; word: 'ended', 'known' (it had ended before) or
-- 'unknown' (never queued here, or long forgotten: remembered now, so that it cannot come back)
local seq = ARGV[4]
local word, published_at, attempts = 'unknown', '', ''
local held = redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts')
if held[1] == seq then
  published_at, attempts = held[2], held[3]
  redis.call('DEL', INFLIGHT)
else
  attempts = redis.call('HGET', ATTEMPTS, seq) or ''
end
if redis.call('ZREM', PENDING, seq) + redis.call('ZREM', PARKED, seq) > 0 then
  word = 'ended'
elseif redis.call('ZSCORE', DONE, seq) then
  word = 'known'
end
redis.call('ZADD', DONE, seq, seq)
redis.call('HDEL', ATTEMPTS, seq)
if ARGV[5] ~= '' and redis.call('HGET', COMPACTION, ARGV[5]) == seq then redis.call('HDEL', COMPACTION, ARGV[5]) end
local following = {'none'}
if ARGV[6] == '1' then following = claim(tonumber(ARGV[1]), tonumber(ARGV[2]), numbers(ARGV[3])) end
return {word, published_at, attempts, unpack(following)}
