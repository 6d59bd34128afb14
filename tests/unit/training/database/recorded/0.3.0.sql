BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE dataset_version (
	id INTEGER NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version VARCHAR(64) NOT NULL, 
	storage_uri VARCHAR(2048) NOT NULL, 
	row_count BIGINT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	schema_hash VARCHAR(64) NOT NULL, 
	split_config JSON NOT NULL, 
	split_config_hash VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	created_by VARCHAR(512) NOT NULL, 
	deprecated_at DATETIME, 
	deprecated_by VARCHAR(512), 
	deprecated_reason VARCHAR(2000), 
	PRIMARY KEY (id), 
	CONSTRAINT uq_dataset_version_name_version UNIQUE (name, version)
);
INSERT INTO "dataset_version" VALUES(1,'search_ranking','41828d1a9ada831b','file:///srv/nightshift/store/manifests/sha256/41/41828d1a9ada831bed689d133adf9fd80228cc5f51249398922b49814ab17413.json',633672,4577932,'fdf8b6f734d50d0cd3b63732618145b863b1151b672f1b2773d5dd85540fd28a','{"by": "time", "validation": "1d", "test": "2d"}','91eefc5ac5424061c1c568d79da16ded6ede598b6d68df7fa7f6380fa03dc342','2026-11-26 22:30:14.908918','search_ranking/night-2026-02-01/ingest/1',NULL,NULL,NULL);
INSERT INTO "dataset_version" VALUES(2,'search_ranking','e7fa795cbb0ab655','file:///srv/nightshift/store/manifests/sha256/e7/e7fa795cbb0ab655a6d630ce0a45287f8402f13a4b9dc505ffb457d1f05248af.json',634812,4585440,'fdf8b6f734d50d0cd3b63732618145b863b1151b672f1b2773d5dd85540fd28a','{"by": "time", "validation": "1d", "test": "2d"}','91eefc5ac5424061c1c568d79da16ded6ede598b6d68df7fa7f6380fa03dc342','2026-11-26 22:31:00.834600','search_ranking/night-2026-02-02/ingest/1',NULL,NULL,NULL);
CREATE TABLE ledger_decision (
	id INTEGER NOT NULL, 
	model VARCHAR(63) NOT NULL, 
	decision_key VARCHAR(64) NOT NULL, 
	weights_digest VARCHAR(64) NOT NULL, 
	version VARCHAR(32) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	outcome VARCHAR(32) NOT NULL, 
	reasons JSON NOT NULL, 
	evidence JSON NOT NULL, 
	decided_at DATETIME NOT NULL, 
	decided_by VARCHAR(512) NOT NULL, 
	semantic_version VARCHAR(32) NOT NULL, 
	request_key VARCHAR(64), 
	revision BIGINT, 
	deleted_at DATETIME, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_ledger_decision_model_key UNIQUE (model, decision_key), 
	CONSTRAINT uq_ledger_decision_model_request UNIQUE (model, request_key), 
	CONSTRAINT uq_ledger_decision_model_revision UNIQUE (model, revision)
);
INSERT INTO "ledger_decision" VALUES(1,'search_ranking','dec8c26c9bb4a340ddc130cabff89b0c00b0f2a183273477232b60bf83a623dc','542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773','1','promoted','accepted','[{"gate": "finite", "passed": true, "words": "ndcg@10 is 0.640087", "severity": "fail", "numbers": {"ndcg@10": 0.6400871665161557}}, {"gate": "minimum", "passed": true, "words": "ndcg@10 0.640087, required >= 0.3", "severity": "fail", "numbers": {"metric": "ndcg@10", "value": 0.6400871665161557, "bound": 0.3}}, {"gate": "constant", "passed": true, "words": "predictions differ from row to row", "severity": "fail", "numbers": {}}, {"gate": "naive_baseline", "passed": true, "words": "ndcg@10 0.640087, best naive baseline positives_per_showing 0.572235: gain +0.0678518, 95 % interval [+0.0589049, +0.0761348], required > 0", "severity": "fail", "numbers": {"baseline": "positives_per_showing", "value": 0.5722353973019636, "gain": 0.06785176921419211, "low": 0.05890492219834803, "high": 0.07613480689415043}}, {"gate": "baseline", "passed": true, "words": "no champion yet: only absolute gates apply", "severity": "fail", "numbers": {}}, {"gate": "leakage", "passed": true, "words": "popularity alone ranks the labels by 0.63175, required < 0.98", "severity": "fail", "numbers": {"feature": "popularity", "value": 0.6317503624631915, "limit": 0.98}}]','{"pipeline": "search_ranking", "spec_uri": "file:///srv/nightshift/store/objects/sha256/bb/bbef3ee943399c8dff27945054d85114dc097d3fb5213008e22bb2d3734795d5", "as_of": "2026-02-01T02:00:00+00:00", "run_id": "night-2026-02-01", "triggered_by": "admin", "evaluation_uri": "file:///srv/nightshift/store/manifests/sha256/17/17c94a00deed1b91b63b153118b617215ff1ca1baaa20696d7fc7bcd7555ba8a.json", "evaluation_digest": "17c94a00deed1b91b63b153118b617215ff1ca1baaa20696d7fc7bcd7555ba8a", "report_uri": "file:///srv/nightshift/store/objects/sha256/a7/a78c1e9b3aa2d714eb884b1f9f7d29c08a58d95ea5223339470305e23254c330", "revision": 0, "metrics": {"mrr": 0.5762603905581339, "ndcg@10": 0.6400871665161557, "recall@10": 0.9518464610498966}, "champion": null, "champion_metrics": {}, "canary": null, "canary_metrics": {}, "comparison": null, "canary_comparison": null, "baseline": "no champion", "num_rows": 44196, "weights_digest": "542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773", "model_uri": "file:///srv/nightshift/store/manifests/sha256/5e/5e4b95a7764e69ce6862ba58f10d7962fd4047258658907e4a6138be5b0b09a4.json", "dataset_uri": "file:///srv/nightshift/store/manifests/sha256/bc/bcbe9689675667ddace6305147a9b65518bcbf093417316676bb5b7377672e3f.json", "snapshot_uri": "file:///srv/nightshift/store/manifests/sha256/41/41828d1a9ada831bed689d133adf9fd80228cc5f51249398922b49814ab17413.json", "snapshot_digest": "41828d1a9ada831bed689d133adf9fd80228cc5f51249398922b49814ab17413", "input_schema": {"category_id": "int32", "item_id": "int32", "popularity": "float", "price": "float", "query_id": "int32", "rating": "float", "user_id": "int32"}, "output_schema": {"label": "clicked", "rule": null, "task": "ranking"}, "framework": "ranker, torch 2.13.0+cpu", "has_canary": false, "mlflow_run_id": "b1d63d3d5965468d902878b5bb027ad1", "overrides": {}, "retraining": {"primary": "ndcg@10", "run_cost": null, "currency": "USD"}, "holder": {"version": "1", "weights_digest": "542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773", "model_uri": "file:///srv/nightshift/store/manifests/sha256/5e/5e4b95a7764e69ce6862ba58f10d7962fd4047258658907e4a6138be5b0b09a4.json", "as_of": "2026-02-01T02:00:00+00:00", "bounds": {"test": ["2026-01-30T00:00:00+00:00", "2026-02-01T00:00:00+00:00"], "train": ["2026-01-02T00:00:00+00:00", "2026-01-29T00:00:00+00:00"], "validation": ["2026-01-29T00:00:00+00:00", "2026-01-30T00:00:00+00:00"]}, "semantic_version": "1.0.0", "since": "", "decision_key": "dec8c26c9bb4a340ddc130cabff89b0c00b0f2a183273477232b60bf83a623dc", "artifact_digest": "017ed1992eddb639c29c632ce84baaef4b532fb0baf202311276ddfbd784669c"}}','2026-11-26 22:30:52.893792','search_ranking/night-2026-02-01/promote','1.0.0',NULL,1,NULL);
INSERT INTO "ledger_decision" VALUES(2,'search_ranking','91af8fc256e7d3e2a7bf59ac6294e4b5ce4d7b1d2616ed486d212f19d5ffd871','97ae91ca4f0e1b21dc2b51408ac1b32a583e4e39c4fabef392b6b6ab4d94bd3e','2','recorded','rejected','[{"gate": "finite", "passed": true, "words": "ndcg@10 is 0.639093", "severity": "fail", "numbers": {"ndcg@10": 0.6390925814841985}}, {"gate": "minimum", "passed": true, "words": "ndcg@10 0.639093, required >= 0.3", "severity": "fail", "numbers": {"metric": "ndcg@10", "value": 0.6390925814841985, "bound": 0.3}}, {"gate": "constant", "passed": true, "words": "predictions differ from row to row", "severity": "fail", "numbers": {}}, {"gate": "naive_baseline", "passed": true, "words": "ndcg@10 0.639093, best naive baseline positives_per_showing 0.573209: gain +0.0658837, 95 % interval [+0.0566164, +0.0740472], required > 0", "severity": "warn", "numbers": {"baseline": "positives_per_showing", "value": 0.573208854376415, "gain": 0.06588372710778345, "low": 0.05661640278719465, "high": 0.07404718725093494}}, {"gate": "baseline", "passed": true, "words": "champion version 1 scored the same rows", "severity": "fail", "numbers": {}}, {"gate": "improvement", "passed": true, "words": "ndcg@10 gain +0.00385144, required > 0.005 of the champion''s 0.635241 = 0.00317621", "severity": "fail", "numbers": {"metric": "ndcg@10", "gain": 0.003851442266952665, "champion": 0.6352411392172458, "asked": 0.003176205696086229, "relative": 0.005}}, {"gate": "significance", "passed": false, "words": "95 % interval of the gain over the champion [-0.00507204, +0.0127749] (wider by blocks of time; 8 blocks of 6h, lag-1 autocorrelation -0.01), lower end > 0 required", "severity": "fail", "numbers": {"low": -0.005072038404608459, "high": 0.012774922938513789, "row_low": -0.0013536267628227504, "row_high": 0.009344618573282728, "decided_by": "blocks", "confidence": 0.95, "clusters": "time", "columns": "", "num_clusters": 8, "num_blocks": 8, "block_seconds": 21558.809461432338, "lag1": -0.00736066873573491, "too_few_blocks": false, "bounded": true}}, {"gate": "drift", "passed": true, "words": "drift of the predictions (PSI) 0.000961684, required <= 0.25", "severity": "warn", "numbers": {"value": 0.0009616840110622322, "limit": 0.25}}, {"gate": "leakage", "passed": true, "words": "popularity alone ranks the labels by 0.632172, required < 0.98", "severity": "fail", "numbers": {"feature": "popularity", "value": 0.6321722979537184, "limit": 0.98}}]','{"pipeline": "search_ranking", "spec_uri": "file:///srv/nightshift/store/objects/sha256/bb/bbef3ee943399c8dff27945054d85114dc097d3fb5213008e22bb2d3734795d5", "as_of": "2026-02-02T02:00:00+00:00", "run_id": "night-2026-02-02", "triggered_by": "admin", "evaluation_uri": "file:///srv/nightshift/store/manifests/sha256/9a/9ab05ef17ab8e244a0c3fe2c741afdfe7fe2c95393ad675219c8706626604f09.json", "evaluation_digest": "9ab05ef17ab8e244a0c3fe2c741afdfe7fe2c95393ad675219c8706626604f09", "report_uri": "file:///srv/nightshift/store/objects/sha256/70/70373103a1d5f8b3b2b1f7c83a9482f6cc0687e6e3bf8d7b5c7de60b07b85263", "revision": 1, "metrics": {"mrr": 0.5736640797638795, "ndcg@10": 0.6390925814841985, "recall@10": 0.9546895861148198}, "champion": {"version": "1", "weights_digest": "542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773", "model_uri": "file:///srv/nightshift/store/manifests/sha256/5e/5e4b95a7764e69ce6862ba58f10d7962fd4047258658907e4a6138be5b0b09a4.json", "as_of": "2026-02-01T02:00:00+00:00", "bounds": {"test": ["2026-01-30T00:00:00+00:00", "2026-02-01T00:00:00+00:00"], "train": ["2026-01-02T00:00:00+00:00", "2026-01-29T00:00:00+00:00"], "validation": ["2026-01-29T00:00:00+00:00", "2026-01-30T00:00:00+00:00"]}, "revision": 1}, "champion_metrics": {"mrr": 0.5696592691168793, "ndcg@10": 0.6352411392172458, "recall@10": 0.9498799987284634}, "canary": null, "canary_metrics": {}, "comparison": {"gain": 0.003851442266952665, "low": -0.005072038404608459, "high": 0.012774922938513789, "probability": 0.908, "num_units": 2996, "row_low": -0.0013536267628227504, "row_high": 0.009344618573282728, "blocks": {"low": -0.005072038404608459, "high": 0.012774922938513789, "clusters": "time", "columns": "", "num_clusters": 8, "num_blocks": 8, "block_seconds": 21558.809461432338, "automatic_seconds": 84.21409945872007, "lag1": -0.00736066873573491, "bin_seconds": 84.21409945872007, "too_few_blocks": false, "bounded": true}, "decided_by": "blocks"}, "canary_comparison": null, "baseline": "champion", "num_rows": 45048, "weights_digest": "97ae91ca4f0e1b21dc2b51408ac1b32a583e4e39c4fabef392b6b6ab4d94bd3e", "model_uri": "file:///srv/nightshift/store/manifests/sha256/73/737f0b19b9c4d10da7ee5d632f19966f0168a8ad4f5ede46236fc3b11c07fc4d.json", "dataset_uri": "file:///srv/nightshift/store/manifests/sha256/94/94e2af4b4514cb26468e6a1ab89416b497be2507f8987560a789588629576db4.json", "snapshot_uri": "file:///srv/nightshift/store/manifests/sha256/e7/e7fa795cbb0ab655a6d630ce0a45287f8402f13a4b9dc505ffb457d1f05248af.json", "snapshot_digest": "e7fa795cbb0ab655a6d630ce0a45287f8402f13a4b9dc505ffb457d1f05248af", "input_schema": {"category_id": "int32", "item_id": "int32", "popularity": "float", "price": "float", "query_id": "int32", "rating": "float", "user_id": "int32"}, "output_schema": {"label": "clicked", "rule": null, "task": "ranking"}, "framework": "ranker, torch 2.13.0+cpu", "has_canary": false, "mlflow_run_id": "144c815988334952b2ed4723389a3c24", "overrides": {}, "retraining": {"primary": "ndcg@10", "run_cost": null, "currency": "USD"}, "holder": {"version": "2", "weights_digest": "97ae91ca4f0e1b21dc2b51408ac1b32a583e4e39c4fabef392b6b6ab4d94bd3e", "model_uri": "file:///srv/nightshift/store/manifests/sha256/73/737f0b19b9c4d10da7ee5d632f19966f0168a8ad4f5ede46236fc3b11c07fc4d.json", "as_of": "2026-02-02T02:00:00+00:00", "bounds": {"test": ["2026-01-31T00:00:00+00:00", "2026-02-02T00:00:00+00:00"], "train": ["2026-01-03T00:00:00+00:00", "2026-01-30T00:00:00+00:00"], "validation": ["2026-01-30T00:00:00+00:00", "2026-01-31T00:00:00+00:00"]}, "semantic_version": "1.0.1", "since": "", "decision_key": "91af8fc256e7d3e2a7bf59ac6294e4b5ce4d7b1d2616ed486d212f19d5ffd871", "artifact_digest": "9511f8ba6b82d270ec78bb24ce8cef10c1425b954be7a11dc4d80f1854e79451"}}','2026-11-26 22:31:29.923631','search_ranking/night-2026-02-02/promote','1.0.1',NULL,NULL,NULL);
CREATE TABLE model_standing (
	model VARCHAR(63) NOT NULL, 
	champion JSON, 
	canary JSON, 
	revision BIGINT NOT NULL, 
	mirrored_revision BIGINT DEFAULT '0' NOT NULL, 
	mirrored_decisions BIGINT DEFAULT '0' NOT NULL, 
	mirrors JSON NOT NULL, 
	PRIMARY KEY (model)
);
INSERT INTO "model_standing" VALUES('search_ranking','{"version": "1", "weights_digest": "542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773", "model_uri": "file:///srv/nightshift/store/manifests/sha256/5e/5e4b95a7764e69ce6862ba58f10d7962fd4047258658907e4a6138be5b0b09a4.json", "as_of": "2026-02-01T02:00:00+00:00", "bounds": {"test": ["2026-01-30T00:00:00+00:00", "2026-02-01T00:00:00+00:00"], "train": ["2026-01-02T00:00:00+00:00", "2026-01-29T00:00:00+00:00"], "validation": ["2026-01-29T00:00:00+00:00", "2026-01-30T00:00:00+00:00"]}, "semantic_version": "1.0.0", "since": "2026-11-26T22:30:52+00:00", "decision_key": "dec8c26c9bb4a340ddc130cabff89b0c00b0f2a183273477232b60bf83a623dc", "artifact_digest": "017ed1992eddb639c29c632ce84baaef4b532fb0baf202311276ddfbd784669c"}',NULL,1,1,2,'{}');
CREATE TABLE model_version (
	id INTEGER NOT NULL, 
	model VARCHAR(63) NOT NULL, 
	weights_digest VARCHAR(64) NOT NULL, 
	semantic_version VARCHAR(32) NOT NULL, 
	input_schema JSON NOT NULL, 
	output_schema JSON NOT NULL, 
	recipe_digest VARCHAR(64) NOT NULL, 
	framework VARCHAR(200) NOT NULL, 
	snapshot_digest VARCHAR(64) NOT NULL, 
	code_version VARCHAR(128) NOT NULL, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_model_version_semantic UNIQUE (model, semantic_version), 
	CONSTRAINT uq_model_version_weights UNIQUE (model, weights_digest)
);
INSERT INTO "model_version" VALUES(1,'search_ranking','542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773','1.0.0','{"category_id": "int32", "item_id": "int32", "popularity": "float", "price": "float", "query_id": "int32", "rating": "float", "user_id": "int32"}','{"label": "clicked", "rule": null, "task": "ranking"}','fcdfe3602defbca885e243e05a0cb9122832bea9553aa9c063229c1ff92a5425','ranker, torch 2.13.0+cpu','41828d1a9ada831bed689d133adf9fd80228cc5f51249398922b49814ab17413','78d0facb9618b11a2de27cdd0af6b51ecaa1700f04b5dbb83e2cd16b64a22b18','2026-11-26 22:30:52.887117');
INSERT INTO "model_version" VALUES(2,'search_ranking','97ae91ca4f0e1b21dc2b51408ac1b32a583e4e39c4fabef392b6b6ab4d94bd3e','1.0.1','{"category_id": "int32", "item_id": "int32", "popularity": "float", "price": "float", "query_id": "int32", "rating": "float", "user_id": "int32"}','{"label": "clicked", "rule": null, "task": "ranking"}','fcdfe3602defbca885e243e05a0cb9122832bea9553aa9c063229c1ff92a5425','ranker, torch 2.13.0+cpu','e7fa795cbb0ab655a6d630ce0a45287f8402f13a4b9dc505ffb457d1f05248af','78d0facb9618b11a2de27cdd0af6b51ecaa1700f04b5dbb83e2cd16b64a22b18','2026-11-26 22:31:29.921859');
CREATE TABLE pipeline (
	name VARCHAR(63) NOT NULL, 
	description TEXT NOT NULL, 
	schedule VARCHAR(200), 
	owner VARCHAR(1000) NOT NULL, 
	dag_config JSON NOT NULL, 
	updated_at DATETIME NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "pipeline" VALUES('search_ranking','Ranks the results of an online shop''s search, retrained every night on the last thirty days of clicks.','0 2 * * *','search-relevance','{"format_version": 1, "name": "search_ranking", "description": "Ranks the results of an online shop''s search, retrained every night on the last thirty days of clicks.", "owner": "search-relevance", "tags": ["ranking", "torch", "demo"], "schedule": "0 2 * * *", "timezone": "UTC", "start": null, "deadline": "07:00", "retries": {"failures": 2, "infrastructure": 8, "backoff": "10s"}, "timeout": {"start": "15m", "transfer": "15m", "part": "1h", "step": "10m", "validation": "10m", "checkpoint": "15m", "mlflow": "15m"}, "alerts": {"on": ["failure", "deadline"], "webhook": null, "slack": null, "email": null}, "data": {"source": {"table": "clicks", "kind": "parquet", "uri": "${SHOP_URI}/clicks", "settings": {}, "partition": "dt={date}", "event_time": "shown_at", "decision_lead": "0s", "window": "30d", "history": null, "wait": "2h", "key": ["search_id", "item_id"], "columns": {"search_id": {"type": "int64", "known": "before", "nullable": false, "source_name": null, "generated": null}, "shown_at": {"type": "timestamp", "known": "before", "nullable": false, "source_name": null, "generated": null}, "user_id": {"type": "int32", "known": "before", "nullable": false, "source_name": null, "generated": null}, "query_id": {"type": "int32", "known": "before", "nullable": false, "source_name": null, "generated": null}, "item_id": {"type": "int32", "known": "before", "nullable": false, "source_name": null, "generated": null}, "category_id": {"type": "int32", "known": "before", "nullable": false, "source_name": null, "generated": null}, "price": {"type": "float", "known": "before", "nullable": false, "source_name": null, "generated": null}, "rating": {"type": "float", "known": "before", "nullable": false, "source_name": null, "generated": null}, "popularity": {"type": "float", "known": "before", "nullable": false, "source_name": null, "generated": null}, "position": {"type": "int32", "known": "before", "nullable": false, "source_name": null, "generated": null}, "clicked": {"type": "int8", "known": "after", "nullable": false, "source_name": null, "generated": null}}, "ignore": [], "derive": {}, "where": null, "sample": null, "union": []}, "features": [], "windows": {}, "label": {"column": "clicked", "rule": null, "positive": null, "known_at": null}, "group": "search_id", "weight": null, "split": {"by": "time", "validation": "1d", "test": "2d", "gap": null, "column": null, "values": null, "seed": 0, "end": "window"}}, "validate": {"suite": "search_ranking/clicks", "volume_change": 0.2, "freshness": "36h", "unknown_labels": null, "schema_change": "warn", "empty_days": null, "drift": {"action": "warn", "against": ["previous", "champion"], "psi": 0.25, "jensen_shannon": null, "kolmogorov_smirnov": null, "new_categories": 0.05, "columns": {}}, "memory": null}, "prepare": {"derive": {}, "features": {"user_id": {"transform": "category", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "query_id": {"transform": "category", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "item_id": {"transform": "category", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "category_id": {"transform": "category", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "price": {"transform": "log", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "rating": {"transform": "standard", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "popularity": {"transform": "log", "serve_as": null, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}, "position": {"transform": "category", "serve_as": 1, "fill": null, "max_categories": null, "buckets": null, "top": null, "parts": [], "form": null, "tokens": null, "ngrams": null, "lowercase": null, "scale": null, "smoothing": null, "folds": null}}}, "tune": null, "train": {"model": "ranker", "seed": 17, "epochs": 3, "batch_size": 4096, "micro_batch_size": null, "learning_rate": 0.02, "warmup_steps": null, "warmup_share": null, "schedule": "cosine", "optimizer": "adamw", "momentum": null, "weight_decay": 0.5, "early_stopping": null, "class_weight": null, "settings": {"embedding_dim": 16, "hidden": [64, 32], "dropout": 0.0, "loss": "listwise"}, "placement": {"nodes": 1, "processes_per_node": 2, "cpus": null, "memory": null, "gpus": 0, "accelerator": null, "shared_memory": null, "min_nodes": null, "spot": false, "topology": null, "priority": null, "pool": null}, "parallel": null, "precision": "auto", "activation_checkpointing": "none", "gradient_compression": "none", "powersgd_rank": null, "replica_check_steps": 1000, "straggler_ratio": 1.5, "checkpoint": {"every": "10m", "keep": 3}, "from_checkpoint": null}, "evaluate": {"task": "ranking", "primary": "ndcg@10", "metrics": {}, "threshold": 0.5, "gain": "linear", "minimum": {"ndcg@10": 0.3}, "maximum": {}, "improvement": {"absolute": null, "relative": 0.005}, "confidence": 0.95, "block": "6h", "slices": ["category_id"], "slice_pairs": true, "slice_support": 500, "slice_drop": null, "sensitive": [], "fairness": {"equal_opportunity": null, "calibration": null}, "entities": [], "latency_ms": {"p50": null, "p95": null, "p99": null}, "checks": {"leakage": 0.98, "overlap": null, "drift": 0.25}, "baseline": {"enabled": true, "season": null, "sql": null}, "gates": {}, "severity": {}}, "promote": {"model": "search_ranking", "approval": "automatic", "approvers": [], "approve_own": false, "approve_within": "7d", "canary": null}, "resources": {}, "costs": {"run": null, "hour": null, "currency": "USD"}}','2026-11-26 22:30:58.474112');
CREATE TABLE pipeline_run (
	run_id VARCHAR(320) NOT NULL, 
	pipeline VARCHAR(63) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	as_of DATETIME, 
	started_at DATETIME, 
	ended_at DATETIME, 
	git_commit VARCHAR(64) NOT NULL, 
	parameters JSON NOT NULL, 
	resource_spec JSON NOT NULL, 
	PRIMARY KEY (run_id)
);
INSERT INTO "pipeline_run" VALUES('search_ranking:night-2026-02-01','search_ranking','running','2026-02-01 02:00:00.000000','2026-11-26 22:30:12.480800',NULL,'601efd1eb18691669412dcbd69ffc170a438a910','{}','{"train.placement": {"nodes": 1, "processes_per_node": 2, "cpus": null, "memory": null, "gpus": 0, "accelerator": null, "shared_memory": null, "min_nodes": null, "spot": false, "topology": null, "priority": null, "pool": null}, "resources": {}}');
INSERT INTO "pipeline_run" VALUES('search_ranking:night-2026-02-02','search_ranking','running','2026-02-02 02:00:00.000000','2026-11-26 22:30:58.474112',NULL,'601efd1eb18691669412dcbd69ffc170a438a910','{}','{"train.placement": {"nodes": 1, "processes_per_node": 2, "cpus": null, "memory": null, "gpus": 0, "accelerator": null, "shared_memory": null, "min_nodes": null, "spot": false, "topology": null, "priority": null, "pool": null}, "resources": {}}');
CREATE TABLE registered_version (
	model VARCHAR(63) NOT NULL, 
	weights_digest VARCHAR(64) NOT NULL, 
	number VARCHAR(32) NOT NULL, 
	logged_model VARCHAR(64) NOT NULL, 
	artifact_digest VARCHAR(64) NOT NULL, 
	rebuilt_at DATETIME, 
	PRIMARY KEY (model, weights_digest)
);
INSERT INTO "registered_version" VALUES('search_ranking','542ec0082b64cd43b976e83aa4f838018708b6b2f08a037f0013322cbfe09773','1','m-f9b370be662844fcba4ed8c0fbbca560','017ed1992eddb639c29c632ce84baaef4b532fb0baf202311276ddfbd784669c',NULL);
INSERT INTO "registered_version" VALUES('search_ranking','97ae91ca4f0e1b21dc2b51408ac1b32a583e4e39c4fabef392b6b6ab4d94bd3e','2','m-9146baa21d604add9113076a3cf3e201','9511f8ba6b82d270ec78bb24ce8cef10c1425b954be7a11dc4d80f1854e79451',NULL);
CREATE TABLE registry_finding (
	id INTEGER NOT NULL, 
	model VARCHAR(63) NOT NULL, 
	alias VARCHAR(32) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	served VARCHAR(64) NOT NULL, 
	words TEXT NOT NULL, 
	first_seen_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	announced_at DATETIME, 
	PRIMARY KEY (id)
);
CREATE TABLE rollback_order (
	order_id VARCHAR(32) NOT NULL, 
	model VARCHAR(63) NOT NULL, 
	weights_digest VARCHAR(64) NOT NULL, 
	revision BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	ordered_by VARCHAR(512) NOT NULL, 
	ordered_at DATETIME NOT NULL, 
	PRIMARY KEY (order_id)
);
CREATE TABLE run_metric (
	run_id VARCHAR(320) NOT NULL, 
	number BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	metric_name VARCHAR(250) NOT NULL, 
	step BIGINT NOT NULL, 
	value DOUBLE, 
	logged_at DATETIME NOT NULL, 
	PRIMARY KEY (run_id, number)
);
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',2,1,'train_loss_step',10,1.91135869627474330734e+00,'2026-11-26 22:30:29.236000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',3,1,'grad_norm',10,1.33421942591667175292e-01,'2026-11-26 22:30:29.236000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',4,1,'learning_rate',10,9.52380952380952466862e-03,'2026-11-26 22:30:29.236000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',5,1,'training_throughput_samples_per_sec',10,3.46506847063093911852e+05,'2026-11-26 22:30:29.236000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',6,1,'train_loss_step',20,1.87868806274056088234e+00,'2026-11-26 22:30:29.304000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',7,1,'grad_norm',20,1.34712040424346923828e-01,'2026-11-26 22:30:29.304000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',8,1,'learning_rate',20,1.90476190476190493372e-02,'2026-11-26 22:30:29.304000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',9,1,'training_throughput_samples_per_sec',20,6.01431459957133396528e+05,'2026-11-26 22:30:29.304000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',10,1,'train_loss_step',30,1.74971236511409466984e+00,'2026-11-26 22:30:29.376000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',11,1,'grad_norm',30,1.23863734304904937744e-01,'2026-11-26 22:30:29.376000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-01',12,1,'learning_rate',30,1.99821514540028111195e-02,'2026-11-26 22:30:29.376000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',2,1,'train_loss_step',10,1.86940373843016871546e+00,'2026-11-26 22:31:11.524000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',3,1,'grad_norm',10,1.52866691350936889648e-01,'2026-11-26 22:31:11.524000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',4,1,'learning_rate',10,9.52380952380952466862e-03,'2026-11-26 22:31:11.524000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',5,1,'training_throughput_samples_per_sec',10,2.32560875546416064019e+05,'2026-11-26 22:31:11.524000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',6,1,'train_loss_step',20,1.84149742685804618247e+00,'2026-11-26 22:31:11.662000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',7,1,'grad_norm',20,1.05512470006942749023e-01,'2026-11-26 22:31:11.662000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',8,1,'learning_rate',20,1.90476190476190493372e-02,'2026-11-26 22:31:11.662000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',9,1,'training_throughput_samples_per_sec',20,2.95025868201794917704e+05,'2026-11-26 22:31:11.662000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',10,1,'slowest_rank_ratio',27,1.06411666463202370103e+00,'2026-11-26 22:31:11.704000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',11,1,'train_loss_step',30,1.85116514502382689677e+00,'2026-11-26 22:31:11.728000');
INSERT INTO "run_metric" VALUES('search_ranking:night-2026-02-02',12,1,'grad_norm',30,1.14243328571319580078e-01,'2026-11-26 22:31:11.728000');
CREATE INDEX ix_pipeline_run_state ON pipeline_run (state);
CREATE INDEX ix_run_metric_run_name_step ON run_metric (run_id, metric_name, step);
CREATE INDEX ix_ledger_decision_model_weights ON ledger_decision (model, weights_digest);
CREATE INDEX ix_registry_finding_model ON registry_finding (model);
CREATE TRIGGER ledger_decision_no_delete BEFORE DELETE ON ledger_decision BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END;
CREATE TRIGGER ledger_decision_no_update BEFORE UPDATE OF id, model, decision_key, weights_digest, version, action, outcome, reasons, evidence, decided_at, decided_by, semantic_version, request_key, revision ON ledger_decision BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END;
CREATE TRIGGER ledger_decision_deleted_once BEFORE UPDATE OF deleted_at ON ledger_decision WHEN OLD.deleted_at IS NOT NULL OR NEW.deleted_at IS NULL BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END;
CREATE VIEW bi_dataset_version AS 
WITH versions AS (SELECT * FROM dataset_version)
SELECT
    name, version, storage_uri, row_count, size_bytes, schema_hash, split_config, split_config_hash, created_at, created_by,
    CASE WHEN deprecated_by IS NOT NULL THEN 'deprecated' WHEN deprecated_at IS NOT NULL THEN 'deleted' ELSE 'available' END AS health,
    deprecated_at, deprecated_by, deprecated_reason
FROM versions;
CREATE VIEW bi_training_datasets AS 
WITH versions AS (SELECT * FROM dataset_version)
SELECT
    name || ':' || version AS dataset_id, name AS pipeline, version AS feature_store_version, split_config_hash,
    storage_uri AS s3_path, row_count, created_at
FROM versions;
CREATE VIEW bi_run_metric AS 
WITH points AS (SELECT * FROM run_metric)
SELECT run_id, metric_name, step, value, logged_at, attempt FROM points;
CREATE VIEW bi_experiments AS 
WITH found AS (SELECT * FROM pipeline)
SELECT name AS experiment_id, name, owner, description FROM found;
CREATE VIEW bi_pipelines AS 
WITH found AS (SELECT * FROM pipeline)
SELECT name AS pipeline_id, name, description, schedule, owner, dag_config, updated_at, owner AS created_by FROM found;
CREATE VIEW bi_runs AS 
WITH found AS (SELECT * FROM pipeline_run)
SELECT run_id, pipeline AS pipeline_id, pipeline AS experiment_id, state, as_of, started_at, ended_at, git_commit, parameters FROM found;
CREATE VIEW bi_experiment_run AS 
WITH found AS (SELECT * FROM pipeline_run)
SELECT
    run_id AS run_uuid, pipeline AS experiment,
    CASE state
        WHEN 'queued' THEN 'queued' WHEN 'success' THEN 'completed' WHEN 'failed' THEN 'failed' WHEN 'lost' THEN 'killed' ELSE 'running'
    END AS status,
    CASE WHEN LENGTH(git_commit) = 40 THEN git_commit END AS code_commit, resource_spec, started_at, ended_at
FROM found;
CREATE VIEW bi_model_version AS 
WITH versions AS (
    SELECT
        model, weights_digest, MAX(semantic_version) AS semantic_version, MIN(decided_at) AS first_decided_at, MAX(id) AS last_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back') THEN id END) AS promotion_id,
        MAX(CASE WHEN action = 'rolled_back' OR outcome IN ('approved', 'declined') THEN id END) AS person_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back', 'canary') THEN 1 ELSE 0 END) AS had_alias,
        MAX(deleted_at) AS weights_deleted_at
    FROM ledger_decision
    GROUP BY model, weights_digest
)
SELECT
    versions.model AS model_name, CAST(COALESCE(registered.number, latest.version) AS VARCHAR(32)) AS version, versions.semantic_version,
    CASE
        WHEN versions.weights_digest = json_extract(standing.champion, '$.weights_digest') THEN 'champion'
        WHEN versions.weights_digest = json_extract(standing.canary, '$.weights_digest') THEN 'canary'
        WHEN versions.had_alias = 1 THEN 'archived'
        ELSE 'candidate'
    END AS stage,
    latest.outcome AS last_outcome, versions.first_decided_at, promotion.decided_at AS promoted_at, promotion.decided_by AS promoted_by,
    made.framework, made.input_schema, made.output_schema, made.code_version, made.snapshot_digest, versions.weights_digest,
    made.created_at, versions.weights_deleted_at, json_extract(person.reasons, '$[#-1].words') AS notes
FROM versions
JOIN ledger_decision AS latest ON latest.id = versions.last_id
LEFT JOIN ledger_decision AS promotion ON promotion.id = versions.promotion_id
LEFT JOIN ledger_decision AS person ON person.id = versions.person_id
LEFT JOIN model_standing AS standing ON standing.model = versions.model
LEFT JOIN registered_version AS registered
    ON registered.model = versions.model AND registered.weights_digest = versions.weights_digest
LEFT JOIN model_version AS made ON made.model = versions.model AND made.weights_digest = versions.weights_digest;
COMMIT;
