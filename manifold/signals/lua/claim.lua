-- Is this message new? Checks and claims nonce and idempotency key in one step. Returns a value of `Claim` in _idempotency.py.
-- KEYS: idempotency key, then the hashes of nonces, first the one to which a new nonce is added (none: there is no nonce).
-- ARGV: digest of the content, digest that identifies the message as holder of the key, how long the key is kept (seconds), the
-- nonce, digest of body and key, how long a hash of nonces is kept (seconds).
-- The value of an idempotency key is 'h' (claimed) or 'd' (done), 16 bytes of content digest, and the holder.
local content, holder, key_s, nonce, nonce_binding, hash_s = unpack(ARGV)
if #KEYS > 1 then
  local known_binding = false
  for n = 2, #KEYS do
    known_binding = redis.call('HGET', KEYS[n], nonce)
    if known_binding then
      break
    end
  end
  if known_binding and known_binding ~= nonce_binding then
    return 'replay'
  end
  if not known_binding then
    redis.call('HSET', KEYS[2], nonce, nonce_binding)
    redis.call('EXPIRE', KEYS[2], hash_s)
  end
end
local known = redis.call('GET', KEYS[1])
if not known then
  redis.call('SET', KEYS[1], 'h' .. content .. holder, 'EX', key_s)
  return 'new'
end
local known_state, known_content, known_holder = string.sub(known, 1, 1), string.sub(known, 2, 17), string.sub(known, 18)
if known_content ~= content then
  return 'conflict'
end
if known_state == 'd' then
  return 'duplicate'
end
if known_holder ~= holder then
  return 'busy'
end
redis.call('EXPIRE', KEYS[1], key_s)
return 'again'
