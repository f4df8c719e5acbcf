-- ecq_page.lua: a page of what is live, in seq order, and how it stands. Changes nothing.
-- ARGV[6] the page begins after this seq   ARGV[7] messages at most; of large ones fewer, and of any one at least
-- returns {acked_seq or '', acked_at or '', epoch, seq in flight or '', the greatest seq or '', '1' where more follow,
--   {key, seq, size of the payload, 'pending' | 'delivered', …}, when a message last expired or ''}; of a message that is not here with its bytes the key is not known
--   either, and, of a very long queue, whether it is live: it stands as '', seq, '', …
local BYTES_AT_ONCE = 4194304 -- of payloads, which are read for the keys before them
local KEYS_AT_ONCE = 10000 -- some milliseconds
local after, most = ARGV[6], tonumber(ARGV[7])
local state = redis.call('HMGET', STATE, 'acked_seq', 'acked_at', 'epoch', 'expired_at')
local held = redis.call('HMGET', INFLIGHT, 'seq', 'superseded')

-- Whether a message is live that was acknowledged and is not here with its bytes. Superseded and acknowledged late, or twice, it is not.
local is_live
local function may_be_live(seq)
  if redis.call('HEXISTS', MESSAGES, seq) == 1 or redis.call('HLEN', COMPACTION) > KEYS_AT_ONCE then return true end
  if not is_live then
    is_live = {}
    for _, live in ipairs(redis.call('HVALS', COMPACTION)) do is_live[live] = true end
  end
  return is_live[seq]
end

-- Those after `after`, one more than the page has. Scores are doubles, so some of a score may come before it.
local function following(queue)
  local found, first, at_once = {}, 0, most + 1 + redis.call('ZCOUNT', queue, after, after)
  repeat
    local some = redis.call('ZRANGEBYSCORE', queue, after, '+inf', 'LIMIT', first, at_once)
    first = first + #some
    for _, seq in ipairs(some) do
      if older(after, seq) and not (held[2] and seq == held[1]) and (queue == PENDING or may_be_live(seq)) then
        found[#found + 1] = seq
      end
    end
  until #found > most or #some < at_once
  return found
end

local pending, delivered, greatest = following(PENDING), following(DELIVERED), ''
for _, queue in ipairs({PENDING, DELIVERED}) do
  local last = redis.call('ZREVRANGE', queue, 0, 0)[1]
  if last and older(greatest, last) then greatest = last end
end
local found, n, p, d, bytes = {}, 0, 1, 1, 0
while n < most and bytes < BYTES_AT_ONCE and (pending[p] or delivered[d]) do
  local is_pending = pending[p] and (not delivered[d] or older(pending[p], delivered[d]))
  local seq = is_pending and pending[p] or delivered[d]
  if is_pending then p = p + 1 else d = d + 1 end
  local message, at = redis.call('HGET', MESSAGES, seq), #found
  local key = message and string.match(message, '^[^%z]*') or ''
  found[at + 1], found[at + 2] = key, seq
  found[at + 3] = message and #message - #key - 1 or ''
  found[at + 4] = is_pending and 'pending' or 'delivered'
  n, bytes = n + 1, bytes + (message and #message or 0)
end
return {state[1] or '', state[2] or '', state[3] or '0', redis.call('HGET', INFLIGHT, 'seq') or '', greatest,
  (pending[p] or delivered[d]) and '1' or '', found, state[4] or ''}
