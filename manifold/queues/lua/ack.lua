-- ack.lua: end an entry in any state, remove it for good, and claim the next one.
-- KEYS[8] the outcomes stream; absent in a cluster, where it is in another slot
-- ARGV[6] seq   ARGV[7] compaction key or ''
-- ARGV[8] '1' to claim the next entry   ARGV[9] code of the outcome
-- with KEYS[8]: ARGV[10] the outcome as JSON without its end   ARGV[11] publish time to use if the queue knows none, or ''
--   ARGV[12] number of attempts, or '' to use the number that the queue knows
-- An entry that ended before keeps its outcome, and nothing is sent. As an exception, a withdrawn entry becomes delivered if it
-- is acknowledged.
-- returns {word, published_at_ms or '', attempts or '', claim's reply…}, where word is one of:
--   'ended'
--   'known': the entry had ended before
--   'unknown': it was never queued here, was withdrawn, or is long forgotten; now it is remembered, so that it cannot come back
--   'sent': its publish may be under way, so only an acknowledgement can end it now; it is pending, and nothing was claimed
local seq = ARGV[6]
local published_at, attempts = '', ''
local held = redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts')
local is_held = held[1] == seq
local sent = (ARGV[9] == FAILED or ARGV[9] == WITHDRAWN) and put_back_if_sent(seq, is_held, held[3])
if sent then return {'sent', '', '', unpack(sent)} end
if is_held then
  published_at, attempts = held[2], held[3]
else
  attempts = redis.call('HGET', ATTEMPTS, seq) or ''
end
local first = redis.call('ZADD', DONE, 'NX', ARGV[9], seq) == 1
local late = not first and ARGV[9] == DELIVERED and redis.call('ZSCORE', DONE, seq) == WITHDRAWN
if late then redis.call('ZADD', DONE, DELIVERED, seq) end
if (first or late) and KEYS[8] then
  local at, times = published_at, attempts
  -- If the caller gives the attempts, ignore the queue's publish time, which is that of the claim: the claimed entry may not have
  -- been published.
  if ARGV[12] ~= '' then at, times = '', ARGV[12] end
  if at == '' then at = ARGV[11] end
  local added = redis.pcall('XADD', KEYS[8], '*', 'o', ARGV[10] .. (at ~= '' and ',"dispatched_ms":' or '') .. at
    .. (times ~= '' and ',"attempts":' or '') .. times .. '}')
  if type(added) == 'table' then -- an error in a script does not roll back earlier writes
    if late then redis.call('ZADD', DONE, WITHDRAWN, seq) else redis.call('ZREM', DONE, seq) end
    return redis.error_reply('OUTCOMES cannot be recorded: ' .. added.err)
  end
end
if published_at ~= '' then redis.call('DEL', INFLIGHT) end
local queued = leave(seq)
if ARGV[7] ~= '' and redis.call('HGET', COMPACTION, ARGV[7]) == seq then redis.call('HDEL', COMPACTION, ARGV[7]) end
local following = {'none'}
if ARGV[8] == '1' then following = claim() end
return {queued and 'ended' or (first or late) and 'unknown' or 'known', published_at, attempts, unpack(following)}
