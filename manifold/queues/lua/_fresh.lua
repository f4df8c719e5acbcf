-- _fresh.lua: what enqueue.lua comes to where Redis knows nothing of an owner but its pending entries: none ended, none parked, never heard of.
-- Before all that the verbs share, because nearly every owner of a rebuild is so, and making those functions takes longer than this does.
-- ARGV and the answer are those of enqueue.lua. Youngest first: where a small sorted set takes a new entry, it looks from its oldest on.
if ARGV[6] ~= '1' and #ARGV > 6 and #ARGV <= 2006 and redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[6]) == 0 then
  local entries, n = {}, 0
  for i = #ARGV, 7, -1 do
    local seq = ARGV[i]
    entries[n + 1], entries[n + 2] = seq, seq
    n = n + 2
  end
  local queued = redis.call('ZADD', KEYS[1], 'NX', unpack(entries))
  return {queued > 0 and 'queued' or 'known', queued}
end
