-- ack.lua: an entry has ended, however it stands; take it out for good and claim the next one.
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] its terms   ARGV[4] seq   ARGV[5] compaction key or ''
-- ARGV[6] '1' to claim the next entry   ARGV[7] how it ended
-- returns {word, published_at_ms or '', attempts or '', claim's answer…}; word: 'ended', 'known' (it had ended before) or
-- 'unknown' (never queued here, or long forgotten: remembered now, so that it cannot come back)
local seq = ARGV[4]
local published_at, attempts = '', ''
local held = redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts')
if held[1] == seq then
  published_at, attempts = held[2], held[3]
  redis.call('DEL', INFLIGHT)
else
  attempts = redis.call('HGET', ATTEMPTS, seq) or ''
end
local queued, first = finish(seq, ARGV[7])
if ARGV[5] ~= '' and redis.call('HGET', COMPACTION, ARGV[5]) == seq then redis.call('HDEL', COMPACTION, ARGV[5]) end
local following = {'none'}
if ARGV[6] == '1' then following = claim(tonumber(ARGV[1]), tonumber(ARGV[2]), terms_of(ARGV[3])) end
return {queued and 'ended' or first and 'unknown' or 'known', published_at, attempts, unpack(following)}
