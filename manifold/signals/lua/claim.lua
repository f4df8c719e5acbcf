-- Is this message new? Nonce and idempotency key in one step.
-- KEYS: idempotency key, then the hashes of nonces, first the one in which a new one is noted (none: there is no nonce).
-- ARGV: digest of the content, who holds it, seconds of the key, the nonce, digest of body and key, seconds of a hash of nonces.
if #KEYS > 1 then
  local seen = false
  for n = 2, #KEYS do
    seen = redis.call('HGET', KEYS[n], ARGV[4])
    if seen then
      break
    end
  end
  if seen and seen ~= ARGV[5] then
    return 'replay'
  end
  if not seen then
    redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
    redis.call('EXPIRE', KEYS[2], ARGV[6])
  end
end
local known = redis.call('GET', KEYS[1])
if not known then
  redis.call('SET', KEYS[1], 'h' .. ARGV[1] .. ARGV[2], 'EX', ARGV[3])
  return 'new'
end
if string.sub(known, 2, 17) ~= ARGV[1] then
  return 'conflict'
end
if string.sub(known, 1, 1) == 'd' then
  return 'duplicate'
end
if string.sub(known, 18) ~= ARGV[2] then
  return 'busy'
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 'again'
