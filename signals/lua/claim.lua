-- Is this message new? Nonce and idempotency key in one step.
-- KEYS: nonce, idempotency key. ARGV: digest of body and key (empty: no nonce), seconds of the nonce, digest of the content,
-- who holds it, seconds of the key.
if ARGV[1] ~= '' then
  local seen = redis.call('GET', KEYS[1])
  if seen and seen ~= ARGV[1] then
    return 'replay'
  end
  if not seen then
    redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  end
end
local held = redis.call('GET', KEYS[2])
if not held then
  redis.call('SET', KEYS[2], 'held ' .. ARGV[3] .. ' ' .. ARGV[4], 'EX', ARGV[5])
  return 'new'
end
local state, content, holder = string.match(held, '^(%a+) (%x+) (.*)$')
if content ~= ARGV[3] then
  return 'conflict'
end
if state == 'done' then
  return 'duplicate'
end
if holder ~= ARGV[4] then
  return 'busy'
end
redis.call('EXPIRE', KEYS[2], ARGV[5])
return 'again'
