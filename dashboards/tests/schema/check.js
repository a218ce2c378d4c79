// Checks dashboards against Grafana's types: `node check.js FILE…`, in the folder where `install` has put them. Prints what is
// wrong, one line each, and a last line with what was checked; ends with 1 if anything is wrong.
const { execFileSync } = require("node:child_process");
const { copyFileSync, readFileSync } = require("node:fs");
const { join } = require("node:path");
const Ajv = require("ajv");

// The compiler looks for modules beside the file that names them.
for (const name of ["types.ts", "tsconfig.json"]) {
    copyFileSync(join(__dirname, name), join(process.cwd(), name));
}
// Each type where it is used: several modules of Grafana's have one of the same name.
const generator = ["--path", "types.ts", "--tsconfig", "tsconfig.json", "--type", "Checked", "--expose", "none"];
const made = execFileSync("node_modules/.bin/ts-json-schema-generator", [...generator, "--additional-properties"], {
    maxBuffer: 1 << 28,
});
const { properties } = JSON.parse(made).definitions?.Checked ?? JSON.parse(made);
const ajv = new Ajv({ strict: false, allErrors: true, allowUnionTypes: true });
const checkers = {};
const checker = (name) => (checkers[name] ??= ajv.compile({ ...properties[name], definitions: JSON.parse(made).definitions }));

const kinds = {
    timeseries: "Timeseries",
    stat: "Stat",
    bargauge: "Bargauge",
    table: "Table",
    "state-timeline": "StateTimeline",
    row: "Row",
};
const languages = { prometheus: "Prometheus", influxdb: "Influxdb" };

// What is wrong with a dashboard, and how many things in it were checked.
function problems(dashboard) {
    const found = [];
    let checked = 0;
    const check = (where, type, value) => {
        checked += 1;
        if (type === undefined) {
            found.push(`${where}: no such type`);
            return;
        }
        const valid = checker(type);
        if (!valid(value)) {
            found.push(...valid.errors.map((error) => `${where}${error.instancePath}: ${error.message}`));
        }
    };
    check("", "Dashboard", dashboard);
    for (const panel of dashboard.panels) {
        check(panel.title, kinds[panel.type], panel);
        for (const target of panel.targets ?? []) {
            check(`${panel.title} ${target.refId}`, languages[target.datasource?.type], target);
        }
    }
    return [found, checked];
}

// A checker that takes anything is none: each of these has to be refused.
const damages = {
    "no schemaVersion": (one) => delete one.schemaVersion,
    "a title that is a number": (one) => (one.title = 7),
    "a variable of no kind": (one) => (one.templating.list[0].type = "magic"),
    "a panel of no kind": (one) => (one.panels[1].type = "piechart3d"),
    "a panel without a place": (one) => delete one.panels[1].gridPos,
    "a query that is none": (one) => delete one.panels[1].targets[0][one.tags[1] === "promql" ? "expr" : "query"],
    "thresholds of no mode": (one) => (one.panels[1].fieldConfig.defaults.thresholds.mode = "sometimes"),
    "an option of the wrong type": (one) => (one.panels[1].options.wideLayout = "yes"),
    "no option of how to reduce": (one) => delete one.panels[1].options.reduceOptions,
};

let wrong = 0;
let checked = 0;
for (const file of process.argv.slice(2)) {
    const text = readFileSync(file, "utf8");
    const [found, count] = problems(JSON.parse(text));
    checked += count;
    for (const problem of found) {
        wrong += 1;
        console.log(`${file}: ${problem}`);
    }
    for (const [name, damage] of Object.entries(damages)) {
        const damaged = JSON.parse(text);
        damage(damaged);
        if (problems(damaged)[0].length <= found.length) {
            wrong += 1;
            console.log(`${file}: ${name} is not refused`);
        }
    }
}
console.log(`${checked} things checked, ${wrong} wrong`);
process.exit(wrong === 0 ? 0 : 1);
