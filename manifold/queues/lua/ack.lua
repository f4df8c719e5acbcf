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
local seq, outcome = ARGV[6], ARGV[9]
local held_seq, held_published_at, held_attempts = unpack(redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts'))
local is_in_flight = held_seq == seq

if outcome == FAILED or outcome == WITHDRAWN then
  local busy = put_back_if_sent(seq, is_in_flight, held_attempts)
  if busy then return {'sent', '', '', unpack(busy)} end
end

local published_at, attempts = '', ''
if is_in_flight then
  published_at, attempts = held_published_at, held_attempts
else
  attempts = redis.call('HGET', ATTEMPTS, seq) or ''
end

local ends_now = redis.call('ZADD', DONE, 'NX', outcome, seq) == 1
local replaces_withdrawn = not ends_now and outcome == DELIVERED and redis.call('ZSCORE', DONE, seq) == WITHDRAWN
if replaces_withdrawn then redis.call('ZADD', DONE, DELIVERED, seq) end

if (ends_now or replaces_withdrawn) and KEYS[8] then
  local dispatched_at, attempt_count = published_at, attempts
  -- If the caller gives the attempts, ignore the queue's publish time, which is that of the claim: the claimed entry may not have
  -- been published.
  if ARGV[12] ~= '' then dispatched_at, attempt_count = '', ARGV[12] end
  if dispatched_at == '' then dispatched_at = ARGV[11] end
  local record = ARGV[10]
  if dispatched_at ~= '' then record = record .. ',"dispatched_ms":' .. dispatched_at end
  if attempt_count ~= '' then record = record .. ',"attempts":' .. attempt_count end
  local added = redis.pcall('XADD', KEYS[8], '*', 'o', record .. '}')
  if type(added) == 'table' then -- an error in a script does not roll back earlier writes
    if replaces_withdrawn then redis.call('ZADD', DONE, WITHDRAWN, seq) else redis.call('ZREM', DONE, seq) end
    return redis.error_reply('OUTCOMES cannot be recorded: ' .. added.err)
  end
end

if is_in_flight then redis.call('DEL', INFLIGHT) end
local was_queued = remove_ended(seq)
if ARGV[7] ~= '' and redis.call('HGET', COMPACTION, ARGV[7]) == seq then redis.call('HDEL', COMPACTION, ARGV[7]) end

local next_claim = {'none'}
if ARGV[8] == '1' then next_claim = claim() end
local word = 'known'
if was_queued then
  word = 'ended'
elseif ends_now or replaces_withdrawn then
  word = 'unknown'
end
return {word, published_at, attempts, unpack(next_claim)}
