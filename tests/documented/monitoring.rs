//! `docs/reference/metrics.md`, and what `packaging/monitoring/` has for Grafana and Prometheus: written from the table of metrics, and
//! held against it. After a change that is meant: `UPDATE_GOLDEN=1 cargo test --test documented monitoring`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use control::metrics::{Family, Kind};
use proxyengine::status::metrics::families;
use serde_json::{Value, json};

use super::root;

/// Holds a file against its text, or writes it.
fn hold(path: &str, text: &str) {
    let path = root().join(path);
    if std::env::var("UPDATE_GOLDEN").is_ok_and(|set| set == "1") {
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        fs::write(&path, text).expect("written");
        return;
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == text,
        "{} is not what the code says\nUPDATE_GOLDEN=1 cargo test --test documented monitoring",
        path.display()
    );
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Info => "info",
    }
}

#[test]
fn reference_of_metrics_is_what_the_table_says() {
    let mut page = "# Metrics\n\nWritten from the code by `tests/documented/`; changes belong there.\n\nWhere they are shown: \
                    [looking at a running engine](../operation.md#looking-at-a-running-engine). `packaging/monitoring/` has a dashboard \
                    for Grafana and alert rules for Prometheus that ask for them.\n\n\
                    Labels are bounded by the configuration at any time. Over time they are not where DNS names servers: each address \
                    that an answer brings is a `server` of its own, such as `web@192.0.2.21:80`.\n\n\
                    | metric | kind | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for (family, labels) in families() {
        let (name, end) = (family.name, family.kind.suffix());
        let labels = labels.join(", ");
        _ = writeln!(
            page,
            "| `{name}{end}` | {} | {labels} | {} |",
            kind(family.kind),
            family.help
        );
    }
    hold("docs/reference/metrics.md", &page);
}

/// The dashboard's rows: what an operator asks first comes first. A family is in the row that names its beginning.
const ROWS: [(&str, &[&str]); 9] = [
    (
        "Is it well?",
        &["ready", "connections_open", "uptime", "core_age", "next_hops"],
    ),
    ("Servers", &["server_", "name_"]),
    ("Times and sizes", &["connect_", "first_byte", "choice", "connection_"]),
    ("Legs", &["client_handshake", "sampled_"]),
    (
        "Listeners and pools",
        &["listener_", "rule_", "pool_connections", "class_", "limit_", "list_"],
    ),
    (
        "Drops and events",
        &["drops", "events", "records", "captured", "log_lines", "segments"],
    ),
    ("Cores", &["core_connections", "core_busy", "core_rounds", "packets"]),
    ("Memory", &["entries", "waiting_frames", "pool_buffers"]),
    ("Ports", &["port_"]),
];

/// What is asked of a family: expressions, and what their lines are called.
fn queries(family: &Family<'_>, labels: &[&str]) -> Vec<(String, String)> {
    let name = family.name;
    let chosen = "{instance=~\"$instance\"}";
    let by = [&["instance"], labels].concat().join(", ");
    let legend: Vec<String> = ["instance"]
        .iter()
        .chain(labels)
        .map(|label| format!("{{{{{label}}}}}"))
        .collect();
    let legend = legend.join(" ");
    match family.kind {
        Kind::Counter => vec![(
            format!("sum by ({by}) (rate({name}_total{chosen}[$__rate_interval]))"),
            legend,
        )],
        Kind::Gauge => vec![(format!("sum by ({by}) ({name}{chosen})"), legend)],
        // Those of servers have no bounds.
        Kind::Histogram if name.starts_with("proxyengine_server_") => {
            let rate = |of| format!("sum by ({by}) (rate({name}_{of}{chosen}[$__rate_interval]))");
            vec![(format!("{} / {}", rate("sum"), rate("count")), format!("{legend} mean"))]
        }
        Kind::Histogram => ["0.5", "0.99"]
            .map(|part| {
                let rate = format!("sum by ({by}, le) (rate({name}_bucket{chosen}[$__rate_interval]))");
                (
                    format!("histogram_quantile({part}, {rate})"),
                    format!("{legend} {part}"),
                )
            })
            .to_vec(),
        Kind::Info => Vec::new(),
    }
}

fn unit(family: &Family<'_>) -> &'static str {
    let is_rate = family.kind == Kind::Counter;
    match family.name.rsplit('_').next() {
        Some("seconds") if is_rate => "percentunit",
        Some("seconds") => "s",
        Some("bytes") if is_rate => "Bps",
        Some("bytes") => "bytes",
        _ if is_rate => "cps",
        _ => "short",
    }
}

fn panel(family: &Family<'_>, labels: &[&str], id: usize, (x, y): (usize, usize)) -> Value {
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    let targets: Vec<Value> = queries(family, labels)
        .into_iter()
        .zip('A'..)
        .map(|((expr, legend), letter)| {
            json!({ "refId": letter.to_string(), "datasource": source, "expr": expr, "legendFormat": legend })
        })
        .collect();
    json!({
        "id": id,
        "type": "timeseries",
        "title": family.help,
        "description": family.name,
        "datasource": source,
        "gridPos": { "x": x, "y": y, "w": 8, "h": 7 },
        "fieldConfig": { "defaults": { "unit": unit(family), "min": 0, "custom": { "fillOpacity": 5, "showPoints": "never" } }, "overrides": [] },
        "options": { "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi", "sort": "desc" } },
        "targets": targets,
    })
}

fn dashboard() -> Value {
    let (mut panels, mut id, mut y) = (Vec::new(), 0, 0);
    for (title, beginnings) in ROWS {
        id += 1;
        panels.push(json!({ "id": id, "type": "row", "title": title, "collapsed": false, "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 }, "panels": [] }));
        y += 1;
        let mut of_row = 0;
        for beginning in beginnings {
            let begins = |family: &Family<'_>| family.name.starts_with(&format!("proxyengine_{beginning}"));
            for (family, labels) in families().filter(|(family, _)| begins(family)) {
                (id, of_row) = (id + 1, of_row + 1);
                panels.push(panel(
                    family,
                    labels,
                    id,
                    ((of_row - 1) % 3 * 8, y + (of_row - 1) / 3 * 7),
                ));
            }
        }
        y += usize::div_ceil(of_row, 3) * 7;
    }
    let variable = |name: &str, kind: &str, query: &str| json!({ "name": name, "type": kind, "query": query });
    let mut instance = variable("instance", "query", "label_values(proxyengine_build_info, instance)");
    instance["datasource"] = json!({ "type": "prometheus", "uid": "${datasource}" });
    for (key, value) in [
        ("refresh", json!(2)),
        ("multi", json!(true)),
        ("includeAll", json!(true)),
    ] {
        instance[key] = value;
    }
    json!({
        "title": "proxyengine",
        "uid": "proxyengine",
        "schemaVersion": 39,
        "editable": true,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [variable("datasource", "datasource", "prometheus"), instance] },
        "panels": panels,
    })
}

#[test]
fn the_dashboard_shows_every_metric_once() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let shown: Vec<&str> = panels
        .iter()
        .filter_map(|panel| panel["description"].as_str())
        .collect();
    let once: BTreeSet<&str> = shown.iter().copied().collect();
    let all = families().filter(|(family, _)| family.kind != Kind::Info);
    assert_eq!(shown.len(), once.len(), "a family in two rows");
    assert_eq!(once, all.map(|(family, _)| family.name).collect());
    let text = serde_json::to_string_pretty(&dashboard).expect("JSON");
    hold("packaging/monitoring/dashboard.json", &format!("{text}\n"));
}

/// What somebody has to be told of.
struct Alert {
    name: &'static str,
    expr: &'static str,
    /// For how long it has to be so.
    lasts: &'static str,
    says: &'static str,
    /// Series, in the words of `promtool`, with which it fires within ten minutes.
    trouble: &'static [(&'static str, &'static str)],
}

const ALERTS: [Alert; 15] = [
    Alert {
        name: "ProxyengineNotReady",
        expr: "proxyengine_ready == 0",
        lasts: "1m",
        says: "{{ $labels.instance }} takes no connections; /ready says why",
        trouble: &[("proxyengine_ready", "0x20")],
    },
    Alert {
        name: "ProxyengineCoreSilent",
        expr: "proxyengine_core_age_seconds > 1",
        lasts: "0s",
        says: "core {{ $labels.core }} of {{ $labels.instance }} has not come round for {{ $value }} s",
        trouble: &[("proxyengine_core_age_seconds{core=\"2\"}", "2x20")],
    },
    Alert {
        name: "ProxyengineServerOut",
        expr: "proxyengine_server_out_cores > 0",
        lasts: "1m",
        says: "server {{ $labels.server }} is passed over by {{ $value }} cores of {{ $labels.instance }}",
        trouble: &[("proxyengine_server_out_cores{server=\"b\"}", "1x20")],
    },
    Alert {
        name: "ProxyengineServerDown",
        expr: "proxyengine_server_check_down > 0",
        lasts: "1m",
        says: "server {{ $labels.server }} of {{ $labels.instance }} does not pass its checks",
        trouble: &[("proxyengine_server_check_down{server=\"b\"}", "1x20")],
    },
    // A server that is not checked has no series of checks.
    Alert {
        name: "ProxyengineNoServer",
        expr: "min by (instance) (proxyengine_server_out_cores + on (instance, server) (proxyengine_server_check_down or on (instance, server) 0 * proxyengine_server_out_cores)) > 0",
        lasts: "15s",
        says: "every server of {{ $labels.instance }} is passed over",
        trouble: &[
            ("proxyengine_server_out_cores{server=\"a\"}", "0x20"),
            ("proxyengine_server_check_down{server=\"a\"}", "1x20"),
            ("proxyengine_server_out_cores{server=\"b\"}", "2x20"),
        ],
    },
    Alert {
        name: "ProxyengineCallsFail",
        expr: "rate(proxyengine_server_failures_total[5m]) / rate(proxyengine_server_calls_total[5m]) > 0.05",
        lasts: "2m",
        says: "server {{ $labels.server }} fails {{ $value | humanizePercentage }} of the calls of {{ $labels.instance }}",
        trouble: &[
            ("proxyengine_server_calls_total{server=\"a\"}", "0+100x20"),
            ("proxyengine_server_failures_total{server=\"a\"}", "0+10x20"),
        ],
    },
    Alert {
        name: "ProxyengineConnectSlow",
        expr: "histogram_quantile(0.99, sum by (instance, pool, le) (rate(proxyengine_connect_seconds_bucket[5m]))) > 1",
        lasts: "5m",
        says: "one call in a hundred of pool {{ $labels.pool }} takes more than {{ $value }} s on {{ $labels.instance }}",
        trouble: &[
            (
                "proxyengine_connect_seconds_bucket{pool=\"p\",le=\"0.524288\"}",
                "0+10x20",
            ),
            (
                "proxyengine_connect_seconds_bucket{pool=\"p\",le=\"2.097152\"}",
                "0+100x20",
            ),
            ("proxyengine_connect_seconds_bucket{pool=\"p\",le=\"+Inf\"}", "0+100x20"),
        ],
    },
    Alert {
        name: "ProxyengineFull",
        expr: "rate(proxyengine_drops_total{reason=~\".*_full|pressure|no_buffer|connection_evicted|tx_refused\"}[5m]) > 0",
        lasts: "1m",
        says: "{{ $labels.instance }} drops {{ $value }} a second for want of room: {{ $labels.group }} {{ $labels.reason }}",
        trouble: &[(
            "proxyengine_drops_total{group=\"proxy_drops\",reason=\"table_full\"}",
            "0+60x20",
        )],
    },
    Alert {
        name: "ProxyengineClientsUncounted",
        expr: "increase(proxyengine_limit_uncounted_total[5m]) > 0",
        lasts: "0s",
        says: "limits of clients did not count {{ $value }} connections of {{ $labels.instance }}: their table is full",
        trouble: &[("proxyengine_limit_uncounted_total", "0+1x20")],
    },
    Alert {
        name: "ProxyengineRecordsLost",
        expr: "increase(proxyengine_records_lost_total[5m]) > 0",
        lasts: "0s",
        says: "{{ $labels.instance }} has lost {{ $value }} session records",
        trouble: &[("proxyengine_records_lost_total", "0+1x20")],
    },
    Alert {
        name: "ProxyengineNextHopUnknown",
        expr: "proxyengine_next_hops{state=\"unresolved\"} > 0",
        lasts: "2m",
        says: "{{ $value }} next hops of {{ $labels.instance }} do not answer who they are",
        trouble: &[("proxyengine_next_hops{state=\"unresolved\"}", "1x20")],
    },
    Alert {
        name: "ProxyengineBuffersLow",
        expr: "proxyengine_pool_buffers_free / proxyengine_pool_buffers < 0.2",
        lasts: "1m",
        says: "only {{ $value | humanizePercentage }} of pool {{ $labels.pool }} of {{ $labels.instance }} are free",
        trouble: &[
            ("proxyengine_pool_buffers{pool=\"p\"}", "1000x20"),
            ("proxyengine_pool_buffers_free{pool=\"p\"}", "199x20"),
        ],
    },
    Alert {
        name: "ProxyengineCoreBusy",
        expr: "rate(proxyengine_core_busy_seconds_total[5m]) > 0.8",
        lasts: "5m",
        says: "core {{ $labels.core }} of {{ $labels.instance }} is busy {{ $value | humanizePercentage }} of the time",
        trouble: &[("proxyengine_core_busy_seconds_total{core=\"1\"}", "0+54x20")],
    },
    Alert {
        name: "ProxyengineImbalance",
        expr: "max by (instance) (rate(proxyengine_core_busy_seconds_total[5m])) > 1.5 * avg by (instance) (rate(proxyengine_core_busy_seconds_total[5m])) and max by (instance) (rate(proxyengine_core_busy_seconds_total[5m])) > 0.5",
        lasts: "5m",
        says: "the busiest core of {{ $labels.instance }} has more than half again what a core has on average",
        trouble: &[
            ("proxyengine_core_busy_seconds_total{core=\"1\"}", "0+36x20"),
            ("proxyengine_core_busy_seconds_total{core=\"2\"}", "0+6x20"),
        ],
    },
    Alert {
        name: "ProxyenginePortDown",
        expr: "proxyengine_port_up == 0",
        lasts: "15s",
        says: "the link of port {{ $labels.port }} of {{ $labels.instance }} is down",
        trouble: &[("proxyengine_port_up{port=\"p\"}", "0x20")],
    },
];

/// Series of an engine of which nobody has to be told anything.
const WELL: [(&str, &str); 14] = [
    ("proxyengine_ready", "1x20"),
    ("proxyengine_core_age_seconds{core=\"1\"}", "0.004x20"),
    ("proxyengine_server_out_cores{server=\"a\"}", "0x20"),
    ("proxyengine_server_check_down{server=\"a\"}", "0x20"),
    ("proxyengine_server_calls_total{server=\"a\"}", "0+100x20"),
    ("proxyengine_server_failures_total{server=\"a\"}", "0+1x20"),
    (
        "proxyengine_drops_total{group=\"proxy_drops\",reason=\"unknown_flow\"}",
        "0+60x20",
    ),
    ("proxyengine_limit_uncounted_total", "3x20"),
    ("proxyengine_records_lost_total", "3x20"),
    ("proxyengine_next_hops{state=\"unresolved\"}", "0x20"),
    ("proxyengine_pool_buffers{pool=\"p\"}", "1000x20"),
    ("proxyengine_pool_buffers_free{pool=\"p\"}", "200x20"),
    ("proxyengine_core_busy_seconds_total{core=\"1\"}", "0+30x20"),
    ("proxyengine_port_up{port=\"p\"}", "1x20"),
];

fn alerts() -> String {
    let mut text = "# Alert rules for Prometheus. Written by tests/documented/, where each is tried with promtool.\n\
                    groups:\n  - name: proxyengine\n    rules:\n"
        .to_owned();
    for alert in &ALERTS {
        // JSON is YAML, but for what says it.
        let quoted = |text: &str| serde_json::to_string(text).expect("JSON");
        _ = writeln!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        annotations:\n          summary: {}",
            alert.name,
            quoted(alert.expr),
            alert.lasts,
            quoted(alert.says)
        );
    }
    text
}

/// The names of metrics in an expression.
fn metrics_in(expr: &str) -> impl Iterator<Item = &str> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("proxyengine_"))
}

#[test]
fn alert_rules_ask_for_what_there_is() {
    let ends = |family: &Family<'_>| match family.kind {
        Kind::Histogram => vec![format!("{}_bucket", family.name)],
        kind => vec![format!("{}{}", family.name, kind.suffix())],
    };
    let known: BTreeSet<String> = families().flat_map(|(family, _)| ends(family)).collect();
    for alert in &ALERTS {
        for name in metrics_in(alert.expr) {
            assert!(known.contains(name), "{}: {name}", alert.name);
        }
        assert!(metrics_in(alert.expr).count() > 0, "{}", alert.name);
    }
    hold("packaging/monitoring/alerts.yml", &alerts());
}

/// A case of `promtool test rules`: with these series a rule fires after ten minutes, or none does.
fn case(series: &[(&str, &str)], firing: Option<&str>) -> Value {
    let series: Vec<Value> = series
        .iter()
        .map(|(name, values)| json!({ "series": name, "values": values }))
        .collect();
    let expected: Vec<Value> = firing
        .iter()
        .map(|name| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 }))
        .collect();
    let of = firing.map_or_else(
        || "alertstate=\"firing\"".to_owned(),
        |name| format!("alertstate=\"firing\",alertname=\"{name}\""),
    );
    json!({
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{ "expr": format!("count by (alertname) (ALERTS{{{of}}})"), "eval_time": "10m", "exp_samples": expected }],
    })
}

#[test]
fn alert_rules_fire_when_they_have_to() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("alerts.yml"), alerts()).expect("written");
    let troubles = ALERTS.iter().map(|alert| case(alert.trouble, Some(alert.name)));
    let cases: Vec<Value> = [case(&WELL, None)].into_iter().chain(troubles).collect();
    let tests = json!({
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "15s",
        "tests": cases,
    });
    let file = folder.path().join("tests.yml");
    fs::write(&file, tests.to_string()).expect("written");
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return rig::skip("documented::alerts", "no promtool (Debian package prometheus)");
        }
        other => other.expect("promtool"),
    };
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
