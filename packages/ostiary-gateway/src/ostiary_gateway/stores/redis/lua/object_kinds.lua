-- uses: state
confirm_if('1')
return reply(redis.call('SMEMBERS', key('object_kinds')))
