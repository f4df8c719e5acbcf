-- The message was not processed: its key is free again, if it is still held by this message.
-- KEYS: idempotency key. ARGV: digest of the content, who holds it.
if redis.call('GET', KEYS[1]) == 'held ' .. ARGV[1] .. ' ' .. ARGV[2] then
  redis.call('DEL', KEYS[1])
end
return 'released'
