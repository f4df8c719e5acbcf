-- ecq_page.lua: read a page of live messages in seq order, and the state of the queue. Changes nothing.
-- ARGV[6] seq after which the page begins   ARGV[7] maximum number of messages; fewer if they are large, but at least one
-- returns {acked_seq or '', acked_at or '', epoch, seq in flight or '', greatest seq or '', '1' if more follow,
--   {key, seq, payload size, 'pending' | 'delivered', …}, time of the last expiry or ''}
-- The key of a message whose payload Redis lacks is unknown, and in a very long queue such a message may not be live. It is
-- listed with an empty key and an empty size.
local BYTES_AT_ONCE = 4194304 -- of messages that are read, because a message begins with its key
local KEYS_AT_ONCE = 10000 -- number of keys that are read at once, which takes a few milliseconds
local after, most = ARGV[6], tonumber(ARGV[7])
local state = redis.call('HMGET', STATE, 'acked_seq', 'acked_at', 'epoch', 'expired_at')
local held = redis.call('HMGET', INFLIGHT, 'seq', 'superseded')

-- Whether an acknowledged message may be live. One without a payload is not live if it was acknowledged after it was superseded,
-- or acknowledged twice.
local is_live
local function may_be_live(seq)
  if redis.call('HEXISTS', MESSAGES, seq) == 1 or redis.call('HLEN', COMPACTION) > KEYS_AT_ONCE then return true end
  if not is_live then
    is_live = {}
    for _, live in ipairs(redis.call('HVALS', COMPACTION)) do is_live[live] = true end
  end
  return is_live[seq]
end

-- The messages of a queue after the seq `after`: one more than fits the page, if there are so many. Scores are doubles, so
-- messages before `after` may have the same score.
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
