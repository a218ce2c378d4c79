//! Dashboards as Grafana's JSON.

use serde_json::{Map, Value, json};

use crate::{
    QueryLanguage, influxql,
    influxql::ResultForm,
    panel::{Dashboard, Panel, PanelKind, PanelLink, Thresholds, ValueUnit, Variable},
    promql,
    query::{PanelQuery, legend},
};

/// Version of Grafana's dashboard format, from Grafana 10.4 on; newer versions convert it.
const SCHEMA_VERSION: u32 = 39;
/// Number of columns of a page.
const COLUMNS: u8 = 24;

impl QueryLanguage {
    /// Grafana's name for the kind of data source.
    fn data_source(self) -> &'static str {
        match self {
            Self::Promql => "prometheus",
            Self::Influxql => "influxdb",
        }
    }

    /// The id of a dashboard; it differs by language, because both may be installed.
    fn uid(self, name: &str) -> String {
        match self {
            Self::Promql => format!("muster-{name}"),
            Self::Influxql => format!("muster-{name}-influxql"),
        }
    }

    fn chosen(self) -> Value {
        json!({ "type": self.data_source(), "uid": "${datasource}" })
    }
}

/// The JSON document of a dashboard.
#[must_use]
pub fn dashboard(dashboard: &Dashboard, flavour: QueryLanguage) -> Value {
    let choice = json!({
        "name": "datasource", "label": "Data source", "type": "datasource", "query": flavour.data_source(),
        "hide": 0, "refresh": 1, "regex": "", "multi": false, "includeAll": false, "skipUrlSync": false,
        "options": [],
    });
    let variables: Vec<Value> =
        [choice].into_iter().chain(dashboard.variables.iter().map(|one| variable(one, flavour))).collect();
    json!({
        "uid": flavour.uid(dashboard.name),
        "title": title(dashboard.title, flavour),
        "description": dashboard.description,
        "tags": ["muster", flavour.word()],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": { "from": dashboard.since, "to": "now" },
        "refresh": "30s",
        "fiscalYearStartMonth": 0,
        "templating": { "list": variables },
        "annotations": { "list": annotations(dashboard, flavour) },
        "links": [{
            "type": "dashboards", "title": "muster", "tags": ["muster", flavour.word()], "asDropdown": true,
            "includeVars": true, "keepTime": true, "targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
        }],
        "panels": panels(dashboard, flavour),
    })
}

fn title(title: &str, flavour: QueryLanguage) -> String {
    match flavour {
        QueryLanguage::Promql => title.to_owned(),
        QueryLanguage::Influxql => format!("{title} (InfluxQL)"),
    }
}

fn variable(variable: &Variable, flavour: QueryLanguage) -> Value {
    let (name, value) = (variable.name, variable.value);
    let (measurement, field) = variable.of;
    let (query, definition) = match flavour {
        QueryLanguage::Promql => {
            let within: Vec<String> =
                variable.within.iter().map(|(label, other)| format!("{label}=~\"${other}\"")).collect();
            let within = if within.is_empty() { String::new() } else { format!("{{{}}}", within.join(",")) };
            let text = format!("label_values({measurement}_{field}{within}, {value})");
            (json!({ "qryType": 1, "query": text, "refId": format!("variable-{name}") }), text)
        }
        QueryLanguage::Influxql => {
            let within: Vec<String> =
                variable.within.iter().map(|(label, other)| format!("\"{label}\" =~ /^${other}$/")).collect();
            let within = if within.is_empty() { String::new() } else { format!(" WHERE {}", within.join(" AND ")) };
            let text = format!("SHOW TAG VALUES FROM \"{measurement}\" WITH KEY = \"{value}\"{within}");
            (json!(text), text)
        }
    };
    let mut made = json!({
        "name": name, "label": variable.label, "type": "query", "datasource": flavour.chosen(),
        "query": query, "definition": definition, "hide": 0, "refresh": 2, "regex": "", "sort": 1,
        "multi": variable.many, "includeAll": variable.many, "skipUrlSync": false, "options": [],
    });
    if variable.many {
        made["allValue"] = json!(".*");
        made["current"] = json!({ "selected": true, "text": ["All"], "value": ["$__all"] });
    }
    made
}

/// Marks on the time axis: alerts of the selected host.
fn annotations(dashboard: &Dashboard, flavour: QueryLanguage) -> Value {
    let builtin = json!({
        "name": "Annotations & Alerts", "type": "dashboard", "builtIn": 1, "enable": true, "hide": true,
        "datasource": { "type": "grafana", "uid": "-- Grafana --" }, "iconColor": "rgba(0, 211, 255, 1)",
    });
    let host = dashboard.variables.iter().find(|one| one.name == "host");
    let (Some(host), QueryLanguage::Promql) = (host, flavour) else { return json!([builtin]) };
    let matches = if host.many { "=~" } else { "=" };
    let alerts = json!({
        "name": "Alerts", "datasource": flavour.chosen(), "enable": true, "hide": false, "iconColor": "red",
        "expr": format!("muster_alert_active{{hostname{matches}\"$host\"}} > 0"), "step": "2m",
        "titleFormat": "{{rule}} on {{hostname}}", "textFormat": "{{severity}} {{subject}}", "tagKeys": "rule,severity",
        "useValueForTime": false,
    });
    json!([builtin, alerts])
}

fn panels(dashboard: &Dashboard, flavour: QueryLanguage) -> Vec<Value> {
    let mut made = Vec::new();
    let (mut x, mut y) = (0_u8, 0_u32);
    for row in &dashboard.rows {
        made.push(json!({
            "id": made.len() + 1, "type": "row", "title": row.title, "collapsed": false, "panels": [],
            "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
        }));
        y += 1;
        let mut lowest = 0;
        for one in &row.panels {
            if x + one.width > COLUMNS {
                (x, y) = (0, y + lowest);
                lowest = 0;
            }
            let place = json!({ "x": x, "y": y, "w": one.width, "h": height(one.kind) });
            made.push(panel(one, made.len() + 1, place, flavour));
            lowest = lowest.max(height(one.kind));
            x += one.width;
        }
        (x, y) = (0, y + lowest);
    }
    made
}

fn height(kind: PanelKind) -> u32 {
    match kind {
        PanelKind::Number => 4,
        PanelKind::Lines | PanelKind::Stacked | PanelKind::Bars => 8,
        PanelKind::Table | PanelKind::States => 9,
    }
}

fn panel(panel: &Panel, id: usize, place: Value, flavour: QueryLanguage) -> Value {
    let targets: Vec<Value> =
        panel.queries.iter().zip('A'..).map(|(query, id)| target(panel, query, id, flavour)).collect();
    let mut made = json!({
        "id": id,
        "type": kind(panel.kind),
        "title": panel.title,
        "description": panel.description,
        "datasource": flavour.chosen(),
        "gridPos": place,
        "interval": interval(panel, flavour),
        "targets": targets,
        "fieldConfig": { "defaults": defaults(panel, flavour), "overrides": overrides(panel, flavour) },
        "options": options(panel, flavour),
    });
    if panel.kind == PanelKind::Table {
        made["transformations"] = transformations(panel, flavour);
    }
    made
}

/// Smallest interval between two values over time.
fn interval(panel: &Panel, flavour: QueryLanguage) -> String {
    match flavour {
        // A host sends every 30 s.
        QueryLanguage::Promql => "30s".to_owned(),
        QueryLanguage::Influxql => format!("{}s", influxql::interval_s(&panel.queries)),
    }
}

fn kind(kind: PanelKind) -> &'static str {
    match kind {
        PanelKind::Lines | PanelKind::Stacked => "timeseries",
        PanelKind::Number => "stat",
        PanelKind::Bars => "bargauge",
        PanelKind::Table => "table",
        PanelKind::States => "state-timeline",
    }
}

/// Whether a panel shows values over time, or current ones.
#[must_use]
pub fn form(kind: PanelKind) -> ResultForm {
    match kind {
        PanelKind::Lines | PanelKind::Stacked | PanelKind::States => ResultForm::Range,
        PanelKind::Number | PanelKind::Bars | PanelKind::Table => ResultForm::Now,
    }
}

/// The name of the column with a query's values.
fn column<'q>(panel: &Panel, query: &'q PanelQuery) -> &'q str {
    if panel.kind == PanelKind::Table { &query.legend } else { "value" }
}

fn target(panel: &Panel, query: &PanelQuery, id: char, flavour: QueryLanguage) -> Value {
    let id = id.to_string();
    let range = form(panel.kind) == ResultForm::Range;
    match flavour {
        QueryLanguage::Promql => {
            let mut made = json!({
                "refId": id, "datasource": flavour.chosen(), "expr": promql::text(query), "editorMode": "code",
                "instant": !range, "range": range, "exemplar": false,
                "format": if panel.kind == PanelKind::Table { "table" } else { "time_series" },
                "legendFormat": legend(&query.legend, |label| match label {
                    "field" => "{{__name__}}".to_owned(),
                    label => format!("{{{{{label}}}}}"),
                }),
            });
            if let Some(step_s) = promql::step_s(query) {
                made["interval"] = json!(format!("{step_s}s"));
            }
            made
        }
        QueryLanguage::Influxql => {
            let is_table = panel.kind == PanelKind::Table || query.top.is_some();
            json!({
                "refId": id, "datasource": flavour.chosen(), "rawQuery": true,
                "query": influxql::text(query, form(panel.kind), column(panel, query)),
                "resultFormat": if is_table { "table" } else { "time_series" },
                "alias": if is_table { String::new() } else { legend(&query.legend, alias) },
            })
        }
    }
}

fn alias(label: &str) -> String {
    match label {
        "field" => "$col".to_owned(),
        label => format!("$tag_{label}"),
    }
}

fn unit(unit: ValueUnit) -> &'static str {
    match unit {
        ValueUnit::Ratio => "percentunit",
        ValueUnit::Bytes => "bytes",
        ValueUnit::BytesPerSecond => "binBps",
        ValueUnit::PerSecond => "cps",
        ValueUnit::Seconds => "s",
        ValueUnit::Celsius => "celsius",
        ValueUnit::Count => "short",
        ValueUnit::Flag => "bool_yes_no",
    }
}

fn thresholds(thresholds: Option<Thresholds>) -> Value {
    let step = |color, value: Option<f64>| json!({ "color": color, "value": value });
    let steps = match thresholds {
        None => vec![step("green", None)],
        Some(Thresholds { look, bad: None }) => vec![step("green", None), step("red", Some(look))],
        Some(Thresholds { look, bad: Some(bad) }) => {
            vec![step("green", None), step("orange", Some(look)), step("red", Some(bad))]
        }
    };
    json!({ "mode": "absolute", "steps": steps })
}

fn defaults(panel: &Panel, flavour: QueryLanguage) -> Value {
    let is_marked = matches!(panel.kind, PanelKind::Number | PanelKind::Bars) && panel.thresholds.is_some();
    let mut made = json!({
        "unit": unit(panel.unit),
        "color": { "mode": if is_marked || panel.kind == PanelKind::States { "thresholds" } else { "palette-classic" } },
        "thresholds": thresholds(panel.thresholds),
        "mappings": [],
        "custom": custom(panel),
    });
    if matches!(panel.unit, ValueUnit::Ratio) && panel.kind != PanelKind::Number {
        made["min"] = json!(0);
        if panel.kind == PanelKind::Bars {
            made["max"] = json!(1);
        }
    }
    if panel.kind == PanelKind::Number {
        made["custom"] = json!({});
        made["color"] = json!({ "mode": "thresholds" });
        // A count without any series is 0.
        if matches!(panel.unit, ValueUnit::Count) {
            made["noValue"] = json!("0");
        }
    }
    if panel.unit == ValueUnit::Flag {
        made["mappings"] = flags(panel.kind);
    }
    if let (PanelKind::Bars, Some(link)) = (panel.kind, panel.link) {
        let label = |label: &str| match flavour {
            QueryLanguage::Promql => format!("${{__field.labels.{label}}}"),
            QueryLanguage::Influxql => format!("${{__data.fields.{label}}}"),
        };
        made["links"] = json!([address(link, flavour, label)]);
    }
    made
}

/// Words and colours for 0 and 1: 1 is good for presence, 0 is good for alerts.
fn flags(kind: PanelKind) -> Value {
    let (no, yes) = if kind == PanelKind::States {
        (json!({ "text": "no", "color": "green" }), json!({ "text": "holds", "color": "red" }))
    } else {
        (json!({ "text": "no", "color": "red" }), json!({ "text": "yes", "color": "green" }))
    };
    json!([{ "type": "value", "options": { "0": no, "1": yes } }])
}

fn custom(panel: &Panel) -> Value {
    match panel.kind {
        PanelKind::Lines | PanelKind::Stacked => {
            let (fill, mode) = if panel.kind == PanelKind::Stacked { (40, "normal") } else { (8, "none") };
            json!({
                "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "fillOpacity": fill,
                "gradientMode": "none", "showPoints": "never", "pointSize": 5, "spanNulls": false, "axisPlacement": "auto",
                "axisLabel": "", "axisSoftMin": 0, "scaleDistribution": { "type": "linear" },
                "stacking": { "mode": mode, "group": "A" },
                "thresholdsStyle": { "mode": if panel.thresholds.is_some() { "dashed" } else { "off" } },
                "hideFrom": { "legend": false, "tooltip": false, "viz": false },
            })
        }
        PanelKind::States => json!({
            "fillOpacity": 70, "lineWidth": 0, "hideFrom": { "legend": false, "tooltip": false, "viz": false },
        }),
        PanelKind::Table => {
            json!({ "align": "auto", "cellOptions": { "type": "auto" }, "filterable": true, "inspect": false })
        }
        PanelKind::Number | PanelKind::Bars => json!({}),
    }
}

fn options(panel: &Panel, flavour: QueryLanguage) -> Value {
    // The rows of a table contain their names.
    let by_row = flavour == QueryLanguage::Influxql && panel.queries.iter().any(|query| query.top.is_some());
    let reduced = json!({ "calcs": ["lastNotNull"], "fields": "", "values": by_row });
    let names = json!({ "displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": [] });
    let tooltip = json!({ "mode": "multi", "sort": "desc" });
    match panel.kind {
        PanelKind::Lines | PanelKind::Stacked => json!({ "legend": names, "tooltip": tooltip }),
        PanelKind::Number => json!({
            "reduceOptions": reduced, "colorMode": "value", "graphMode": "none", "justifyMode": "auto",
            "orientation": "auto", "textMode": "value", "wideLayout": true, "showPercentChange": false,
            "percentChangeColorMode": "standard",
        }),
        PanelKind::Bars => json!({
            "reduceOptions": reduced, "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": true,
            "valueMode": "color", "namePlacement": "left", "sizing": "auto", "minVizHeight": 16, "minVizWidth": 8,
            "maxVizHeight": 32,
            "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": [] },
        }),
        PanelKind::Table => json!({
            "showHeader": true, "cellHeight": "sm", "frameIndex": 0, "showTypeIcons": false,
        }),
        PanelKind::States => json!({
            "showValue": "never", "mergeValues": true, "alignValue": "left", "rowHeight": 0.9,
            "legend": names, "tooltip": { "mode": "single", "sort": "none" },
        }),
    }
}

/// The address to which a name links.
fn address(link: PanelLink, flavour: QueryLanguage, label: impl Fn(&str) -> String) -> Value {
    let (name, labels) = match link {
        PanelLink::Host => ("host", &["hostname"][..]),
        PanelLink::Unit => ("unit", &["hostname", "realm", "unit"][..]),
    };
    let variables: String = labels
        .iter()
        .map(|one| format!("&var-{}={}", if *one == "hostname" { "host" } else { one }, label(one)))
        .collect();
    let url = format!("/d/{}?${{__url_time_range}}&${{datasource:queryparam}}{variables}", flavour.uid(name));
    // All these fields are required by Grafana's published types.
    json!({
        "title": format!("Show this {name}"), "url": url, "type": "link", "icon": "", "tooltip": "", "tags": [],
        "asDropdown": false, "targetBlank": false, "includeVars": false, "keepTime": false,
    })
}

/// The columns of a table: their units, and the links of names.
fn overrides(panel: &Panel, flavour: QueryLanguage) -> Value {
    if panel.kind != PanelKind::Table {
        return json!([]);
    }
    let named = |name: &str| json!({ "id": "byName", "options": name });
    let mut made: Vec<Value> = Vec::new();
    for query in &panel.queries {
        let of = query.unit.unwrap_or(panel.unit);
        let mut properties = vec![json!({ "id": "unit", "value": unit(of) })];
        if of == ValueUnit::Flag {
            properties.push(json!({ "id": "mappings", "value": flags(if panel.unit == ValueUnit::Flag { PanelKind::States } else { PanelKind::Table }) }));
            properties.push(json!({ "id": "custom.cellOptions", "value": { "type": "color-text" } }));
        }
        if of == ValueUnit::Ratio {
            properties.extend([
                json!({ "id": "min", "value": 0 }),
                json!({ "id": "max", "value": 1 }),
                json!({ "id": "thresholds", "value": thresholds(Some(Thresholds { look: 0.85, bad: Some(0.95) })) }),
                json!({ "id": "color", "value": { "mode": "thresholds" } }),
                json!({ "id": "custom.cellOptions", "value": { "type": "gauge", "mode": "basic", "valueDisplayMode": "text" } }),
            ]);
        }
        made.push(json!({ "matcher": named(&query.legend), "properties": properties }));
    }
    if let Some(link) = panel.link {
        let field = if link == PanelLink::Host { "hostname" } else { "unit" };
        let links = json!([address(link, flavour, |label| format!("${{__data.fields.{label}}}"))]);
        made.push(json!({ "matcher": named(field), "properties": [{ "id": "links", "value": links }] }));
    }
    json!(made)
}

/// Merges several results into one table: one row for each combination of labels, one column for each query.
fn transformations(panel: &Panel, flavour: QueryLanguage) -> Value {
    let labels = panel.queries.first().map(|query| query.by).unwrap_or_default();
    let only_one = panel.queries.len() == 1;
    let (mut order, mut names) = (Map::new(), Map::new());
    for (index, label) in labels.iter().enumerate() {
        order.insert((*label).to_owned(), json!(index));
    }
    for (index, (query, id)) in panel.queries.iter().zip('A'..).enumerate() {
        let column = match flavour {
            QueryLanguage::Promql if only_one => "Value".to_owned(),
            QueryLanguage::Promql => format!("Value #{id}"),
            QueryLanguage::Influxql => query.legend.clone().into_owned(),
        };
        order.insert(column.clone(), json!(labels.len() + index));
        if column != query.legend {
            names.insert(column, json!(query.legend));
        }
    }
    json!([
        { "id": "filterFieldsByName", "options": { "exclude": { "names": ["Time"] } } },
        { "id": "merge", "options": {} },
        { "id": "organize", "options": { "excludeByName": {}, "indexByName": order, "renameByName": names } },
    ])
}
