-- ecq_page.lua: read a page of live messages in seq order, and the state of the queue. Changes nothing.
-- ARGV[6] seq after which the page begins   ARGV[7] maximum number of messages; fewer if they are large, but at least one
-- returns {acked_seq or '', acked_at or '', epoch, seq in flight or '', greatest seq or '', '1' if more follow,
--   {key, seq, payload size, 'pending' | 'delivered', …}, time of the last expiry or ''}
-- The key of a message whose payload Redis lacks is unknown, and in a very long queue such a message may not be live. It is
-- listed with an empty key and an empty size.
local MAX_READ_BYTES = 4194304 -- of messages that are read, because a message begins with its key
local MAX_READ_KEYS = 10000 -- number of keys that are read at once, which takes a few milliseconds
local after, limit = ARGV[6], tonumber(ARGV[7])
local acked_seq, acked_at, epoch, expired_at =
  unpack(redis.call('HMGET', STATE, 'acked_seq', 'acked_at', 'epoch', 'expired_at'))
local held_seq, is_superseded = unpack(redis.call('HMGET', INFLIGHT, 'seq', 'superseded'))

-- Whether an acknowledged message may be live. One without a payload is not live if it was acknowledged after it was superseded,
-- or acknowledged twice.
local is_live -- set of all live seqs, read once if it is needed
local function may_be_live(seq)
  if redis.call('HEXISTS', MESSAGES, seq) == 1 or redis.call('HLEN', COMPACTION) > MAX_READ_KEYS then return true end
  if not is_live then
    is_live = {}
    for _, live_seq in ipairs(redis.call('HVALS', COMPACTION)) do is_live[live_seq] = true end
  end
  return is_live[seq]
end

-- The messages of a queue after the seq `after`: one more than fits the page, if there are so many. Scores are doubles, so
-- messages before `after` may have the same score.
local function following(queue)
  local found, offset, batch_size = {}, 0, limit + 1 + redis.call('ZCOUNT', queue, after, after)
  repeat
    local seqs = redis.call('ZRANGEBYSCORE', queue, after, '+inf', 'LIMIT', offset, batch_size)
    offset = offset + #seqs
    for _, seq in ipairs(seqs) do
      local has_newer = is_superseded and seq == held_seq -- a newer message of its key is live
      if older(after, seq) and not has_newer and (queue == PENDING or may_be_live(seq)) then found[#found + 1] = seq end
    end
  until #found > limit or #seqs < batch_size
  return found
end

local pending, delivered, greatest = following(PENDING), following(DELIVERED), ''
for _, queue in ipairs({PENDING, DELIVERED}) do
  local last = redis.call('ZREVRANGE', queue, 0, 0)[1]
  if last and older(greatest, last) then greatest = last end
end

-- Merge the two lists in seq order, until the page is full. `p` and `d` are the indices of their next messages.
local found, count, bytes, p, d = {}, 0, 0, 1, 1
while count < limit and bytes < MAX_READ_BYTES and (pending[p] or delivered[d]) do
  local is_pending = pending[p] and (not delivered[d] or older(pending[p], delivered[d]))
  local seq = is_pending and pending[p] or delivered[d]
  if is_pending then p = p + 1 else d = d + 1 end
  local message, n = redis.call('HGET', MESSAGES, seq), #found
  local key = message and string.match(message, '^[^%z]*') or ''
  found[n + 1], found[n + 2] = key, seq
  found[n + 3] = message and #message - #key - 1 or ''
  found[n + 4] = is_pending and 'pending' or 'delivered'
  count, bytes = count + 1, bytes + (message and #message or 0)
end
local has_more = pending[p] or delivered[d]
return {acked_seq or '', acked_at or '', epoch or '0', held_seq or '', greatest, has_more and '1' or '', found, expired_at or ''}
