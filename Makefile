# Every verb is a script or a plain command of the language's own tools; this file only names them.
.PHONY: build dist test-dist test-guests test-kernel image test-cluster bench-cell bench-cluster-scale bench-control-plane demo deny simulate test test-long test-mqtt test-zero experiments soak bench-accept bench-access bench-check bench-cold bench-contracts bench-dev bench-fairness bench-footprint bench-idle bench-image bench-kv bench-calls bench-mqtt bench-schedules bench-spill bench-starts bench-threads bench-tls bench-warm bench-wasm bench-ablation bench-uplink bench-isolation bench-scrape bench-wire profile-warm fuzz lab charts docs recording lint

build:
	scripts/setup.sh build
	MOTE_COMMIT=$$(git rev-parse HEAD 2>/dev/null || echo unknown) cargo build --release -p mote

# The images of a cell and of a controller, in target/images.
image: build
	cargo build --release -p mote-cluster
	scripts/image.sh

dist test-cluster test-dist test-guests test-kernel bench-cell bench-cluster-scale bench-control-plane demo deny lab lint test test-long test-mqtt test-zero experiments soak bench-accept bench-access bench-check bench-cold bench-contracts bench-dev bench-fairness bench-footprint bench-idle bench-image bench-kv bench-calls bench-mqtt bench-schedules bench-starts bench-threads bench-tls bench-warm bench-wasm bench-ablation bench-uplink bench-isolation bench-scrape bench-wire profile-warm fuzz bench-spill:
	scripts/$@.sh

# The pictures of README.md, and the documentation as a site in target/book.
charts:
	scripts/draw-charts.sh

recording:
	scripts/record-demo.sh

docs:
	scripts/docs.sh

# Scaling policies side by side on every family of demand; starts no node.
simulate: build
	$${CARGO_TARGET_DIR:-target}/release/mote simulate
