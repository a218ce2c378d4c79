//! `muster top`: the current load of hosts, or units, the busiest first.
//!
//! On a terminal it refreshes every few seconds until `q`; elsewhere, and with `--once` or `-o json`, it prints
//! once. The console computes all values, rates among them: one query for each column.
//!
//! Modules: `rows` (queries and order), `screen` (layout), both pure; `terminal` (takes the screen over, and
//! gives it back).

mod rows;
mod screen;
pub(super) mod terminal;

use std::{io::IsTerminal, time::Duration};

use clap::Args;
use futures_util::future::try_join_all;
use muster_api::{Host, Unit};
use muster_base::{
    clock,
    failure::{Failure, FailureContext, FailureKind},
};
use muster_topics::select::HostSelect;

use self::{
    rows::{QueryValues, TopRow, TopSort, TopTable},
    screen::{ScreenFrame, ScreenSize},
    terminal::{Terminal, TerminalInput},
};
use super::{metric, print, session::CliSession, target};

pub use super::top_subject::TopSubject;

/// Show what hosts or units do now, the busiest first
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "Keys: c cpu, m memory, d disk, n network, h name set the order; space updates now; q quits.\n\n\
                    --select takes what `muster exec --select` takes; with `units`, it selects their hosts. If the output is not a terminal, it is printed once."
)]
pub struct TopArgs {
    /// Hosts or units
    #[arg(value_enum, default_value_t = TopSubject::Hosts)]
    pub what: TopSubject,
    /// Hosts that this selects
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION")]
    pub select: Option<HostSelect>,
    /// Order of the list
    #[arg(long, value_name = "ORDER", value_enum, default_value_t = TopSort::Cpu)]
    pub sort: TopSort,
    /// Time between updates
    ///
    /// Hosts measure every ten seconds.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub every: humantime::Duration,
    /// Print it once, and exit
    #[arg(long)]
    pub once: bool,
}

/// Shortest interval between two updates: nothing is measured more often.
const EVERY_MIN: Duration = Duration::from_millis(500);

/// Runs the verb.
///
/// # Errors
/// If the console cannot be reached, or if the terminal cannot be used.
pub async fn run(top: TopArgs, session: &CliSession) -> Result<(), Failure> {
    if session.printer.is_for_programs() {
        let table = ask(&top, session).await?;
        return session.printer.data(&table.rows);
    }
    if top.once || !std::io::stdout().is_terminal() {
        let table = ask(&top, session).await?;
        let (printer, look) = (session.printer, ScreenSize::plain());
        let frame = ScreenFrame { table: &table, sort: top.sort, every: None, printer, look };
        return print::write_out(&frame.text());
    }
    live(top, session).await
}

/// Draws until the user quits. In all cases the terminal is restored when it is dropped.
async fn live(mut top: TopArgs, session: &CliSession) -> Result<(), Failure> {
    let every = Duration::from(top.every).max(EVERY_MIN);
    // Asked before the screen is switched, so that an error is shown on the normal screen.
    let mut table = ask(&top, session).await?;
    let mut terminal = Terminal::take().trying("using the terminal")?;
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let (printer, look) = (session.printer, terminal.look());
        let frame = ScreenFrame { table: &table, sort: top.sort, every: Some(every), printer, look };
        terminal.draw(&frame.text()).trying("using the terminal")?;
        // Each arm is safe to cancel: a tick comes again, and an unread key stays in the kernel.
        let input = tokio::select! {
            _ = ticks.tick() => TerminalInput::Now,
            input = terminal.input() => input,
        };
        match input {
            TerminalInput::Quit => return Ok(()),
            TerminalInput::Sort(sort) => top.sort = sort,
            TerminalInput::Now => match ask(&top, session).await {
                Ok(now) => table = now,
                // A console that restarts is waited for.
                Err(failure) if failure.kind == FailureKind::Unreachable => {
                    table.trouble = failure.cause().map(str::to_owned);
                }
                Err(failure) => return Err(failure),
            },
            TerminalInput::Other => {}
        }
        table.sort(top.sort);
    }
}

/// Reads all values from the console.
async fn ask(top: &TopArgs, session: &CliSession) -> Result<TopTable, Failure> {
    let queries = match top.what {
        TopSubject::Hosts => rows::HOSTS,
        TopSubject::Units => rows::UNITS,
    };
    let now_ms = clock::now_ms();
    let values = |query: &'static rows::TopQuery| async move {
        let series = metric::instant(session, query.expression, now_ms).await?;
        Ok::<QueryValues, Failure>(rows::values(series))
    };
    let (hosts, answers) =
        tokio::try_join!(session.client.get::<Vec<Host>>("hosts", &[]), try_join_all(queries.iter().map(values)),)?;
    let picked = match &top.select {
        Some(select) => Some(target::picked(session, select).await?),
        None => None,
    };
    let is_picked = |host: &str| picked.as_ref().is_none_or(|picked| picked.iter().any(|id| id == host));
    let hosts: Vec<Host> = hosts.into_iter().filter(|host| is_picked(&host.id.to_string())).collect();
    let rows: Vec<TopRow> = match top.what {
        TopSubject::Hosts => hosts.iter().map(|host| rows::host(host, &answers)).collect(),
        TopSubject::Units => {
            let units: Vec<Unit> = session.client.get("units", &[]).await?;
            let shown = units.iter().filter(|unit| is_picked(&unit.host.to_string()));
            shown.map(|unit| rows::unit(unit, &answers)).collect()
        }
    };
    let online = hosts.iter().filter(|host| rows::is_online(host)).count();
    let mut table = TopTable { what: top.what, rows, hosts: hosts.len(), online, at_ms: now_ms, trouble: None };
    table.sort(top.sort);
    Ok(table)
}
