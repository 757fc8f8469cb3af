"""Authorization providers whose policy is what an upstream holds: how they read it, and when they start and go on.

followers    all of them in one configuration: started, adopted by the next configuration, shown
reader       one upstream as such a provider reads it: whole answers, and answers that go on line by line
"""
