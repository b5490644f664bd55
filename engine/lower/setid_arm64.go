package lower

func modeCalls() []modeCall { return commonModeCalls() }
