// What a dashboard of ours is, in Grafana's own types. Its panels' options are `any` there; here each kind of panel has its own.
import type * as bargauge from "@grafana/grafana-foundation-sdk/bargauge";
import type * as common from "@grafana/grafana-foundation-sdk/common";
import type * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";
import type * as prometheus from "@grafana/grafana-foundation-sdk/prometheus";
import type * as stat from "@grafana/grafana-foundation-sdk/stat";
import type * as statetimeline from "@grafana/grafana-foundation-sdk/statetimeline";
import type * as table from "@grafana/grafana-foundation-sdk/table";
import type * as timeseries from "@grafana/grafana-foundation-sdk/timeseries";

// Its panels are checked each by itself.
type Whole = Omit<dashboard.Dashboard, "panels" | "uid" | "title"> & { uid: string; title: string };

type Row = Omit<dashboard.RowPanel, "panels">;

type Prometheus = Omit<prometheus.Dataquery, "_implementsDataqueryVariant"> & {
    refId: string;
    datasource: common.DataSourceRef;
};

// Grafana publishes no type of this one.
type Influxdb = {
    refId: string;
    datasource: common.DataSourceRef;
    query: string;
    rawQuery: true;
    resultFormat: "time_series" | "table" | "logs";
    alias: string;
};

type Panel<Options, Custom> = Omit<dashboard.Panel, "targets" | "options" | "fieldConfig" | "gridPos" | "title"> & {
    title: string;
    gridPos: dashboard.GridPos;
    options: Options;
    fieldConfig: {
        defaults: Omit<dashboard.FieldConfig, "custom"> & { custom?: Custom };
        overrides: dashboard.FieldConfigSource["overrides"];
    };
};

type Timeseries = Panel<timeseries.Options, timeseries.FieldConfig>;
type Stat = Panel<stat.Options, unknown>;
type Bargauge = Panel<bargauge.Options, unknown>;
type Table = Panel<table.Options, table.FieldConfig>;
type StateTimeline = Panel<statetimeline.Options, statetimeline.FieldConfig>;

// What is asked of the checker, by name.
export interface Checked {
    Dashboard: Whole;
    Row: Row;
    Prometheus: Prometheus;
    Influxdb: Influxdb;
    Timeseries: Timeseries;
    Stat: Stat;
    Bargauge: Bargauge;
    Table: Table;
    StateTimeline: StateTimeline;
}
