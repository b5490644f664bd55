package gateway

import "encoding/json"

// Usage is what one call used, as the provider counts it. Input counts the tokens that came from the provider's cache
// (Cached) and those that were written into it (Written) too.
type Usage struct {
	Input   int64 `json:"input"`
	Cached  int64 `json:"cached"`
	Written int64 `json:"written,omitempty"`
	Output  int64 `json:"output"`
	// Estimated says that the provider told nothing (the answer was cut off, say) and that the numbers are a guess from the
	// sizes of question and answer, on the high side.
	Estimated bool `json:"estimated,omitempty"`

	hour  int64 // of Written, those that the provider keeps for an hour
	told  bool  // the input is known
	final bool  // so is all of the output
}

// bytesPerToken is on the low side for code and prose in every tokenizer that the providers document.
const bytesPerToken = 3

// guess fills in what was not told: of an answer that was cut off, the output so far counts at least, or whoever hangs up
// before the last line would be served for nothing.
func (u *Usage) guess(sent, received int64) {
	if !u.told {
		u.Input, u.Cached, u.Written, u.hour = (sent+bytesPerToken-1)/bytesPerToken, 0, 0, 0
	}
	if !u.final {
		u.Output = max(u.Output, (received+bytesPerToken-1)/bytesPerToken)
		u.Estimated = true
	}
}

// told is what an event tells.
type told struct{ input, cached, written, hour, output int64 }

// most is far above what a call can use, and far below where sums of such numbers run over.
const most = 1 << 40

// keep takes what an event tells. Providers repeat or correct numbers in the course of a stream: the largest count.
func (u *Usage) keep(final bool, t told) {
	if t.input <= 0 && t.output <= 0 {
		return
	}
	u.told, u.final = true, u.final || final
	for at, number := range map[*int64]int64{&u.Input: t.input, &u.Cached: t.cached, &u.Written: t.written, &u.hour: t.hour, &u.Output: t.output} {
		*at = max(*at, min(number, most))
	}
}

func chatUsage(event []byte, into *Usage) {
	var e struct {
		Usage struct {
			Prompt     int64 `json:"prompt_tokens"`
			Completion int64 `json:"completion_tokens"`
			Details    struct {
				Cached  int64 `json:"cached_tokens"`
				Written int64 `json:"cache_write_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if json.Unmarshal(event, &e) == nil {
		into.keep(true, told{e.Usage.Prompt, e.Usage.Details.Cached, e.Usage.Details.Written, 0, e.Usage.Completion})
	}
}

func responsesUsage(event []byte, into *Usage) {
	type usage struct {
		Input   int64 `json:"input_tokens"`
		Output  int64 `json:"output_tokens"`
		Details struct {
			Cached  int64 `json:"cached_tokens"`
			Written int64 `json:"cache_write_tokens"`
		} `json:"input_tokens_details"`
	}
	var e struct {
		Usage    usage
		Response struct{ Usage usage } // of response.completed, .incomplete and .failed
	}
	if json.Unmarshal(event, &e) != nil {
		return
	}
	for _, u := range []usage{e.Usage, e.Response.Usage} {
		into.keep(true, told{u.Input, u.Details.Cached, u.Details.Written, 0, u.Output})
	}
}

// messagesUsage adds what was read from and written to the cache to the input, which Anthropic counts without them. Where the
// provider asked the model more than once for one answer (to shorten a long context, say) the bill is the sum of the
// iterations, of which the numbers beside them are only a part.
func messagesUsage(event []byte, into *Usage) {
	type usage struct {
		Input   int64 `json:"input_tokens"`
		Created int64 `json:"cache_creation_input_tokens"`
		Kept    struct {
			Hour int64 `json:"ephemeral_1h_input_tokens"`
		} `json:"cache_creation"`
		Read   int64 `json:"cache_read_input_tokens"`
		Output int64 `json:"output_tokens"`
	}
	type answer struct {
		usage
		Iterations []usage
	}
	var e struct {
		Usage   answer                 // of a whole answer, and of message_delta
		Message struct{ Usage answer } // of message_start
	}
	if json.Unmarshal(event, &e) != nil {
		return
	}
	for i, a := range []answer{e.Message.Usage, e.Usage} {
		sum := told{}
		for _, u := range a.Iterations {
			sum.input += within(u.Input) + within(u.Created) + within(u.Read)
			sum.cached += within(u.Read)
			sum.written += within(u.Created)
			sum.hour += within(u.Kept.Hour)
			sum.output += within(u.Output)
		}
		into.keep(i == 1, sum)
		into.keep(i == 1, told{within(a.Input) + within(a.Created) + within(a.Read), a.Read, a.Created, a.Kept.Hour, a.Output})
	}
}

// geminiUsage counts thoughts as output, as the bill does.
func geminiUsage(event []byte, into *Usage) {
	type usage struct {
		Prompt     int64 `json:"promptTokenCount"`
		Cached     int64 `json:"cachedContentTokenCount"`
		Candidates int64 `json:"candidatesTokenCount"`
		Thoughts   int64 `json:"thoughtsTokenCount"`
		ToolUse    int64 `json:"toolUsePromptTokenCount"`
	}
	type item struct {
		Metadata usage `json:"usageMetadata"`
	}
	var one item
	var many []item // a stream that was not asked for as events
	switch {
	case json.Unmarshal(event, &one) == nil:
		many = []item{one}
	case json.Unmarshal(event, &many) != nil:
		return
	}
	for _, i := range many {
		u := i.Metadata
		into.keep(true, told{input: within(u.Prompt) + within(u.ToolUse), cached: u.Cached, output: within(u.Candidates) + within(u.Thoughts)})
	}
}

func within(n int64) int64 { return min(max(0, n), most) }
