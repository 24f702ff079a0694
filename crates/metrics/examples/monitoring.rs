//! Makes the Grafana dashboard and the alert rules of Prometheus, both from lists of questions and
//! metrics. `monitoring DIR` writes `DIR/grafana/omr.json` and `DIR/prometheus/omr-alerts.yml`.
//! This is an example, so that the shipped program does not contain them.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

use omr_charts::Topic;
use serde_json::{Value, json};

const HEAD: &str = "made by: cargo run -p omr-metrics --example monitoring -- packaging";

fn main() -> io::Result<()> {
    let Some(dir) = env::args_os().nth(1) else {
        return Err(io::Error::other("usage: monitoring DIR"));
    };
    for (file, text) in files() {
        let path = Path::new(&dir).join(file);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

fn files() -> [(&'static str, String); 2] {
    [("grafana/omr.json", dashboard()), ("prometheus/omr-alerts.yml", alerts())]
}

/// A row of values in a panel.
struct Query {
    expr: &'static str,
    legend: &'static str,
    /// The unit of Grafana where it is not that of the panel: it gets the axis at the right.
    unit: Option<&'static str>,
}

fn query(expr: &'static str, legend: &'static str) -> Query {
    Query { expr, legend, unit: None }
}

fn other_unit(expr: &'static str, legend: &'static str, unit: &'static str) -> Query {
    Query { expr, legend, unit: Some(unit) }
}

/// The panel of a question.
struct Panel {
    unit: &'static str,
    about: &'static str,
    is_stacked: bool,
    queries: Vec<Query>,
}

fn panel(topic: Topic) -> Panel {
    let panel = |unit, about, queries| Panel { unit, about, is_stacked: false, queries };
    match topic {
        Topic::Unused => panel(
            "s",
            "Anonymous and shared memory by the time since it was last used, at least. The axis is the age, the \
             colour is the amount. The last row is memory whose age is longer than that before it, or unknown.",
            vec![query(
                r#"sum by (le) (omr_memory_age_bytes{instance="$instance",group="$group",bound="most"})"#,
                "{{le}}",
            )],
        ),
        Topic::Promise => panel(
            "percentunit",
            "Memory that was unused for the threshold and was used again, in a minute, as a share of the working set.",
            vec![
                query(r#"omr_slo_promotion_ratio{instance="$instance",group="$group"}"#, "promotions, at {{bound}}"),
                query(r#"omr_slo_limit_ratio{instance="$instance"}"#, "allowed"),
                other_unit(r#"omr_threshold_seconds{instance="$instance",group="$group"}"#, "threshold", "s"),
            ],
        ),
        Topic::Taken => panel(
            "bytes",
            "The whole machine. Refaults are those of the 5 min after a sweep.",
            vec![
                query(
                    r#"sum by (kind, backend) (increase(omr_reclaimed_bytes_total{instance="$instance"}[$__rate_interval]))"#,
                    "{{kind}} taken by {{backend}}",
                ),
                query(r#"-increase(omr_came_back_bytes_total{instance="$instance"}[$__rate_interval])"#, "came back"),
                query(r#"omr_held_out_bytes{instance="$instance"}"#, "still out"),
            ],
        ),
        Topic::Decisions => Panel {
            is_stacked: true,
            ..panel(
                "percentunit",
                "The share of the time for which a decision was in force, by what was decided and why.",
                vec![query(
                    r#"sum by (act, reason) (rate(omr_decision_seconds_total{instance="$instance"}[$__rate_interval]))"#,
                    "{{act}}: {{reason}}",
                )],
            )
        },
        Topic::Waited => panel(
            "s",
            "Regret, and the time until sweeps stopped, are those of the whole machine.",
            vec![
                query(r#"increase(omr_regret_seconds_total{instance="$instance"}[$__rate_interval])"#, "regret"),
                query(
                    r#"histogram_quantile(0.99, sum by (le) (increase(omr_stop_seconds_bucket{instance="$instance"}[$__range])))"#,
                    "99 % of sweeps stopped within",
                ),
                other_unit(
                    r#"omr_stall_ratio{instance="$instance",group="$group"}"#,
                    "some task waited (PSI)",
                    "percentunit",
                ),
            ],
        ),
        Topic::Place => Panel {
            is_stacked: true,
            ..panel(
                "bytes",
                "Memory that was used within 2 min is shown with its most.",
                vec![
                    query(
                        r#"omr_working_set_bytes{instance="$instance",group="$group",bound="most"}"#,
                        "used within 2 min",
                    ),
                    query(
                        r#"omr_memory_age_bytes{instance="$instance",group="$group",bound="most",le="+Inf"} - ignoring (le) omr_working_set_bytes{instance="$instance",group="$group",bound="most"}"#,
                        "cold",
                    ),
                    query(r#"omr_page_cache_bytes{instance="$instance",group="$group"}"#, "page cache"),
                    query(r#"omr_swap_bytes{instance="$instance",group="$group"}"#, "swap"),
                ],
            )
        },
        Topic::Cost => panel(
            "bytes",
            "Swap writes within the time of the write budget, and the CPU time of the daemon.",
            vec![
                query(r#"omr_write_budget_used_bytes{instance="$instance"}"#, "written to swap"),
                query(r#"omr_write_budget_bytes{instance="$instance"}"#, "write budget"),
                other_unit(
                    r#"rate(omr_cpu_seconds_total{instance="$instance"}[$__rate_interval])"#,
                    "CPU time, of one CPU",
                    "percentunit",
                ),
            ],
        ),
        Topic::Sleep => panel(
            "bytes",
            "The hibernation image as it would be, at most. Empty where the machine cannot hibernate.",
            vec![
                query(r#"omr_image_forecast_bytes{instance="$instance"}"#, "image"),
                other_unit(r#"omr_image_write_seconds{instance="$instance"}"#, "time to write it", "s"),
            ],
        ),
    }
}

fn dashboard() -> String {
    let source = json!({"type": "prometheus", "uid": "${source}"});
    let panels: Vec<Value> = Topic::ALL.into_iter().map(|topic| grafana_panel(topic, &source)).collect();
    let choice = |name: &str, label: &str, query: &str| {
        json!({
            "name": name, "label": label, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
            "query": {"query": query, "refId": name}, "definition": query,
        })
    };
    let dashboard = json!({
        "uid": "omr", "title": "omr: opportunistic memory reclaim", "description": HEAD, "tags": ["omr", "memory"],
        "schemaVersion": 38, "version": 1, "editable": true, "refresh": "1m", "timezone": "utc",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
            choice("instance", "Machine", "label_values(omr_up, instance)"),
            choice("group", "Group", r#"label_values(omr_memory_bytes{instance="$instance"}, group)"#),
        ]},
        "panels": panels,
    });
    format!("{dashboard:#}\n")
}

fn grafana_panel(topic: Topic, source: &Value) -> Value {
    let Panel { unit, about, is_stacked, queries } = panel(topic);
    let is_heatmap = topic == Topic::Unused;
    let place = topic.number() - 1;
    let letter = |number: usize| ["A", "B", "C", "D"].get(number).copied().unwrap_or("E");
    let targets: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(|(number, query)| {
            json!({
                "refId": letter(number), "datasource": source, "expr": query.expr, "legendFormat": query.legend,
                "format": if is_heatmap { "heatmap" } else { "time_series" },
            })
        })
        .collect();
    let overrides: Vec<Value> = queries
        .iter()
        .enumerate()
        .filter_map(|(number, query)| {
            let unit = query.unit?;
            Some(json!({
                "matcher": {"id": "byFrameRefID", "options": letter(number)},
                "properties": [
                    {"id": "unit", "value": unit},
                    {"id": "custom.axisPlacement", "value": "right"},
                    {"id": "custom.stacking", "value": {"mode": "none"}},
                ],
            }))
        })
        .collect();
    let mut panel = json!({
        "id": place + 1, "title": topic.question(), "description": about, "datasource": source, "targets": targets,
        "type": if is_heatmap { "heatmap" } else { "timeseries" },
        "gridPos": {"x": 12 * (place % 2), "y": 8 * (place / 2), "w": 12, "h": 8},
    });
    if let Some(panel) = panel.as_object_mut() {
        if is_heatmap {
            panel.insert(
                "options".into(),
                json!({
                    "calculate": false, "yAxis": {"unit": unit}, "cellValues": {"unit": "bytes"},
                    "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
                }),
            );
        } else {
            let mode = if is_stacked { "normal" } else { "none" };
            panel.insert(
                "fieldConfig".into(),
                json!({
                    "defaults": {
                        "unit": unit,
                        "custom": {"fillOpacity": if is_stacked { 40 } else { 0 }, "stacking": {"mode": mode}},
                    },
                    "overrides": overrides,
                }),
            );
        }
    }
    panel
}

/// An alert: a value that is beyond a limit for some time.
struct Alert {
    name: &'static str,
    value: &'static str,
    beyond: &'static str,
    lasts: &'static str,
    severity: &'static str,
    summary: &'static str,
    about: &'static str,
}

const ALERTS: [Alert; 6] = [
    Alert {
        name: "OmrPromiseBroken",
        value: r#"omr_slo_promotion_ratio{bound="least"} / on (instance, job) group_left () omr_slo_limit_ratio"#,
        beyond: "> 1",
        lasts: "15m",
        severity: "warning",
        summary: "{{ $labels.group }} on {{ $labels.instance }} needs more cold memory again than is allowed",
        about: "Promotions at the threshold are {{ $value | humanize }} times what is allowed. The threshold \
                rises by itself; omr explain {{ $labels.group }} says why it is what it is.",
    },
    Alert {
        name: "OmrWriteBudgetNearlyUsed",
        value: "omr_write_budget_used_bytes / omr_write_budget_bytes",
        beyond: "> 0.8",
        lasts: "5m",
        severity: "warning",
        summary: "omr on {{ $labels.instance }} has used {{ $value | humanizePercentage }} of its swap writes",
        about: "With the budget used up, omr takes no more memory to swap on disks until the hour of the first \
                writes is over. It does no harm; less memory is taken.",
    },
    Alert {
        name: "OmrDaemonGone",
        value: "omr_up",
        beyond: "== 0",
        lasts: "5m",
        severity: "critical",
        summary: "omr's daemon on {{ $labels.instance }} does not answer",
        about: "Nothing is reclaimed. systemctl status omr and journalctl -u omr say why.",
    },
    Alert {
        name: "OmrHistoryUnreadable",
        value: "omr_history_readable",
        beyond: "== 0",
        lasts: "15m",
        severity: "warning",
        summary: "omr's history on {{ $labels.instance }} cannot be read in full",
        about: "omr history --groups names the file and the reason.",
    },
    Alert {
        name: "OmrHistoryOld",
        value: "omr_history_sample_age_seconds",
        beyond: "> 3600",
        lasts: "15m",
        severity: "warning",
        summary: "omr's last sample of groups on {{ $labels.instance }} is {{ $value | humanizeDuration }} old",
        about: "Samples come every ten minutes by default. The daemon does not run, has no budget of CPU time for \
                samples (history.budget), or cannot write /var/lib/omr/history.",
    },
    Alert {
        name: "OmrTextfileOld",
        value: r#"time() - node_textfile_mtime_seconds{file=~".*/omr[.]prom"}"#,
        beyond: "> 600",
        lasts: "5m",
        severity: "warning",
        summary: "omr's textfile on {{ $labels.instance }} is {{ $value | humanizeDuration }} old",
        about: "omr-metrics.timer writes it once a minute. systemctl status omr-metrics says why it does not.",
    },
];

fn alerts() -> String {
    let mut text =
        format!("# Alerts of omr, for rule_files of Prometheus; docs/use/metrics.md explains them.\n# {HEAD}\n");
    text.push_str("groups:\n  - name: omr\n    rules:\n");
    for alert in ALERTS {
        // A string in JSON is one in YAML.
        let quoted = |text: &str| Value::from(text).to_string();
        let expr = format!("{} {}", alert.value, alert.beyond);
        let _ = write!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          severity: {}\n        \
             annotations:\n          summary: {}\n          description: {}\n",
            alert.name,
            quoted(&expr),
            alert.lasts,
            alert.severity,
            quoted(alert.summary),
            quoted(alert.about),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_package_are_those_that_are_made() {
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        for (file, text) in files() {
            let found = fs::read_to_string(packaging.join(file)).expect("a file");
            assert!(found == text, "packaging/{file} is not as made; {HEAD}");
        }
    }

    #[test]
    fn the_dashboard_has_a_panel_for_each_question() {
        let dashboard: Value = dashboard().parse().expect("JSON");
        let titles: Vec<&str> = dashboard["panels"]
            .as_array()
            .expect("panels")
            .iter()
            .filter_map(|panel| panel["title"].as_str())
            .collect();
        assert_eq!(titles, Topic::ALL.map(Topic::question));
    }

    #[test]
    fn no_expression_has_a_metric_that_omr_does_not_write() {
        let names: Vec<String> = omr_metrics::families::ALL.iter().map(|family| family.name.to_owned()).collect();
        let panels = Topic::ALL.into_iter().flat_map(|topic| panel(topic).queries).map(|query| query.expr);
        for expr in panels.chain(ALERTS.iter().map(|alert| alert.value)) {
            let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with("omr_")) {
                let word = word.strip_suffix("_total").or_else(|| word.strip_suffix("_bucket")).unwrap_or(word);
                assert!(names.iter().any(|name| name == word), "{word} in {expr}");
            }
        }
    }
}
