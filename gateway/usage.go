package gateway

import "encoding/json"

// Usage is what one call used, as the provider counts it. Input counts cached tokens too.
type Usage struct {
	Input  int64 `json:"input"`
	Cached int64 `json:"cached"`
	Output int64 `json:"output"`
	// Estimated says that the provider told nothing (the answer was cut off, say) and that the numbers are a guess from the
	// sizes of question and answer, on the high side.
	Estimated bool `json:"estimated,omitempty"`

	told  bool // the input is known
	final bool // so is all of the output
}

// bytesPerToken is on the low side for code and prose in every tokenizer that the providers document.
const bytesPerToken = 3

// guess fills in what was not told: of an answer that was cut off, the output so far counts at least, or whoever hangs up
// before the last line would be served for nothing.
func (u *Usage) guess(sent, received int64) {
	if !u.told {
		u.Input, u.Cached = (sent+bytesPerToken-1)/bytesPerToken, 0
	}
	if !u.final {
		u.Output = max(u.Output, (received+bytesPerToken-1)/bytesPerToken)
		u.Estimated = true
	}
}

// keep takes what an event tells. Providers repeat or correct numbers in the course of a stream: the largest count.
func (u *Usage) keep(final bool, input, cached, output int64) {
	if input <= 0 && output <= 0 {
		return
	}
	u.told, u.final = true, u.final || final
	u.Input, u.Cached, u.Output = max(u.Input, input), max(u.Cached, cached), max(u.Output, output)
}

func chatUsage(event []byte, into *Usage) {
	var e struct {
		Usage struct {
			Prompt     int64 `json:"prompt_tokens"`
			Completion int64 `json:"completion_tokens"`
			Details    struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if json.Unmarshal(event, &e) == nil {
		into.keep(true, e.Usage.Prompt, e.Usage.Details.Cached, e.Usage.Completion)
	}
}

func responsesUsage(event []byte, into *Usage) {
	type usage struct {
		Input   int64 `json:"input_tokens"`
		Output  int64 `json:"output_tokens"`
		Details struct {
			Cached int64 `json:"cached_tokens"`
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
		into.keep(true, u.Input, u.Details.Cached, u.Output)
	}
}

// messagesUsage adds what was read from and written to the cache to the input, which Anthropic counts without them.
func messagesUsage(event []byte, into *Usage) {
	type usage struct {
		Input   int64 `json:"input_tokens"`
		Created int64 `json:"cache_creation_input_tokens"`
		Read    int64 `json:"cache_read_input_tokens"`
		Output  int64 `json:"output_tokens"`
	}
	var e struct {
		Usage   usage                 // of a whole answer, and of message_delta
		Message struct{ Usage usage } // of message_start
	}
	if json.Unmarshal(event, &e) != nil {
		return
	}
	for i, u := range []usage{e.Message.Usage, e.Usage} {
		into.keep(i == 1, u.Input+u.Created+u.Read, u.Read, u.Output)
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
		into.keep(true, u.Prompt+u.ToolUse, u.Cached, u.Candidates+u.Thoughts)
	}
}
