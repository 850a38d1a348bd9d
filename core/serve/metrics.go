package serve

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/model"
)

// Buckets in seconds, those of vLLM, so that its dashboards work.
var (
	firstBuckets   = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tokenBuckets   = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// lengthBuckets are 1-2-5 steps up to limit.
func lengthBuckets(limit int) []float64 {
	var out []float64
	for base := 1; base <= limit; base *= 10 {
		for _, k := range []int{1, 2, 5} {
			if base*k <= limit {
				out = append(out, float64(base*k))
			}
		}
	}
	return out
}

// metrics are the counters of one model.
type metrics struct {
	registry                   *prometheus.Registry
	prompt, generation         prometheus.Counter
	success                    *prometheus.CounterVec
	first, between, perToken   prometheus.Histogram
	whole                      prometheus.Histogram
	promptLength, answerLength prometheus.Histogram
}

func newMetrics(m *Model) *metrics {
	reg := prometheus.NewRegistry()
	labels := prometheus.Labels{"model_name": m.Name, "engine": "0"}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
	}
	x := &metrics{
		registry:     reg,
		prompt:       counter("vllm:prompt_tokens_total", "Tokens of prompts taken in."),
		generation:   counter("vllm:generation_tokens_total", "Tokens generated."),
		success:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Requests that ended, by reason.", ConstLabels: labels}, []string{"finished_reason"}),
		first:        histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", firstBuckets),
		between:      histogram("vllm:inter_token_latency_seconds", "Between two tokens of one answer.", tokenBuckets),
		perToken:     histogram("vllm:time_per_output_token_seconds", "Between two tokens of one answer (older name).", tokenBuckets),
		whole:        histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", requestBuckets),
		promptLength: histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", lengthBuckets(m.Context)),
		answerLength: histogram("vllm:request_generation_tokens", "Tokens of an answer.", lengthBuckets(m.Context)),
	}
	for _, why := range []string{"stop", "length", "abort", "error"} {
		x.success.WithLabelValues(why)
	}
	reg.MustRegister(x.prompt, x.generation, x.success, x.first, x.between, x.perToken, x.whole, x.promptLength, x.answerLength, newEngineCollector(m, labels))
	return x
}

// prompts counts a prompt that n choices share: each has it computed.
func (x *metrics) prompts(n, tokens int) {
	for range n {
		x.prompt.Add(float64(tokens))
		x.promptLength.Observe(float64(tokens))
	}
}

// tokens counts n tokens that came together, since after the one before them.
func (x *metrics) tokens(n int, first bool, since, sinceArrival time.Duration) {
	x.generation.Add(float64(n))
	if first {
		x.first.Observe(sinceArrival.Seconds())
		n--
		since = 0
	}
	for range n {
		x.between.Observe(since.Seconds() / float64(n))
		x.perToken.Observe(since.Seconds() / float64(n))
	}
}

// finished counts the end of a choice. stopped = the parser ended it.
func (x *metrics) finished(st *engine.Stream, stopped bool, tokens int, took time.Duration) {
	st.Cancel()
	why := string(st.Finish())
	if stopped && why == string(engine.FinishAbort) {
		why = string(engine.FinishStop)
	}
	x.success.WithLabelValues(why).Inc()
	x.whole.Observe(took.Seconds())
	x.answerLength.Observe(float64(tokens))
}

// engineCollector reads the engine's snapshot when it is scraped.
type engineCollector struct {
	m     *Model
	descs map[string]*prometheus.Desc
}

const (
	gaugeRunning     = "vllm:num_requests_running"
	gaugeWaiting     = "vllm:num_requests_waiting"
	gaugeWaitingWhy  = "vllm:num_requests_waiting_by_reason"
	gaugeCache       = "vllm:kv_cache_usage_perc"
	countPreempted   = "vllm:num_preemptions_total"
	countRejected    = "vllm:admission_rejections_total"
	histIteration    = "vllm:iteration_tokens_total"
	infoCache        = "vllm:cache_config_info"
	histStep         = "deepinfer:step_seconds"
	countLosses      = "deepinfer:device_losses_total"
	countRecoveries  = "deepinfer:device_recoveries_total"
	countStepFailed  = "deepinfer:step_failures_total"
	countImages      = "deepinfer:images_encoded_total"
	gaugePending     = "deepinfer:pending_prompt_tokens"
	gaugeGranules    = "deepinfer:kv_granules"
	gaugeSlots       = "deepinfer:state_slots"
	gaugeRecovering  = "deepinfer:recovering"
	gaugeBackendInfo = "deepinfer:backend_info"
)

func newEngineCollector(m *Model, labels prometheus.Labels) *engineCollector {
	c := &engineCollector{m: m, descs: map[string]*prometheus.Desc{}}
	add := func(name, help string, variable ...string) {
		c.descs[name] = prometheus.NewDesc(name, help, variable, labels)
	}
	add(gaugeRunning, "Requests that run.")
	add(gaugeWaiting, "Requests that wait.")
	add(gaugeWaitingWhy, "Requests that wait, by reason.", "reason")
	add(gaugeCache, "Share of the KV granules that is in use or promised, 0 to 1.")
	add(countPreempted, "Requests sent back to the queue.")
	add(countRejected, "Requests refused at the door.", "reason")
	add(histIteration, "Rows of a step.")
	add(infoCache, "Shape of the KV cache.", "block_size", "num_gpu_blocks", "bytes", "numerics")
	add(histStep, "Duration of a step.")
	add(countLosses, "Times the device was lost.")
	add(countRecoveries, "Times it was brought back.")
	add(countStepFailed, "Steps that the device refused.")
	add(countImages, "Images encoded.")
	add(gaugePending, "Prompt tokens that wait or are in prefill.")
	add(gaugeGranules, "KV granules of 128 tokens.", "state")
	add(gaugeSlots, "State slots.", "state")
	add(gaugeRecovering, "1 while the device is being brought back.")
	add(gaugeBackendInfo, "The backend.", "backend", "device")
	return c
}

// Describe implements prometheus.Collector.
func (c *engineCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *engineCollector) Collect(ch chan<- prometheus.Metric) {
	st, facts := c.m.Engine.Stats(), c.m.Engine.Facts()
	emit := func(kind prometheus.ValueType, name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], kind, v, labels...)
	}
	gauge := func(name string, v float64, labels ...string) { emit(prometheus.GaugeValue, name, v, labels...) }
	count := func(name string, v uint64, labels ...string) {
		emit(prometheus.CounterValue, name, float64(v), labels...)
	}
	gauge(gaugeRunning, float64(st.Running))
	gauge(gaugeWaiting, float64(st.Queued))
	gauge(gaugeWaitingWhy, float64(st.Queued), "capacity")
	gauge(gaugeWaitingWhy, 0, "deferred")
	pool := st.Pool
	used := pool.Granules - pool.FreeGranules
	if pool.Granules > 0 {
		gauge(gaugeCache, float64(used)/float64(pool.Granules))
	}
	gauge(gaugeGranules, float64(used), "used")
	gauge(gaugeGranules, float64(pool.FreeGranules), "free")
	gauge(gaugeSlots, float64(pool.Slots-pool.FreeSlots), "used")
	gauge(gaugeSlots, float64(pool.FreeSlots), "free")
	gauge(infoCache, 1, strconv.Itoa(model.GranuleTokens), strconv.Itoa(pool.Granules), strconv.FormatInt(c.m.CacheSize, 10), c.m.Numerics)
	gauge(gaugeBackendInfo, 1, facts.Backend, facts.Device.Name)
	count(countPreempted, st.Preempted)
	count(countRejected, st.Rejected, "max_num_queued_reqs")
	count(countLosses, st.Losses)
	count(countRecoveries, st.Recoveries)
	count(countStepFailed, st.StepFailures)
	count(countImages, st.ImageSteps)
	gauge(gaugePending, float64(st.PendingTokens))
	recovering := 0.0
	if st.Recovering {
		recovering = 1
	}
	gauge(gaugeRecovering, recovering)
	// The engine keeps the sum of rows, not their distribution: the histogram has no buckets below +Inf.
	ch <- prometheus.MustNewConstHistogram(c.descs[histIteration], st.Steps, float64(st.Rows), nil)
	buckets := map[float64]uint64{}
	var n uint64
	for i, bound := range engine.StepSeconds {
		n += st.StepTime.Counts[i]
		buckets[bound] = n
	}
	ch <- prometheus.MustNewConstHistogram(c.descs[histStep], st.StepTime.Count(), st.StepTime.Sum.Seconds(), buckets)
}

// metricsHandler serves /metrics: those of the process from the start, those of the model once it is there.
func (s *Server) metricsHandler() http.HandlerFunc {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "deepinfer:ready", Help: "1 when requests are taken."}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.unready(s.model.Load()) != nil {
			return 0
		}
		return 1
	})
	process.MustRegister(ready)
	return func(w http.ResponseWriter, r *http.Request) {
		all := prometheus.Gatherers{process}
		if m := s.model.Load(); m != nil {
			all = append(all, m.metrics.registry)
		}
		promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
	}
}
