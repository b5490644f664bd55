package gateway

// Count returns the usage that an answer of the API's first endpoint tells, as the gateway counts it while it passes by.
func Count(api API, streams bool, answer []byte) Usage {
	var u Usage
	s, known := speechOf(api)
	if !known {
		return u
	}
	m := &meter{read: s.calls[0].usage, streams: streams, usage: &u}
	m.Write(answer) // never fails
	m.end()
	return u
}
