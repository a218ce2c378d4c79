//! `muster top`: what hosts, or units, do now, the busiest first.
//!
//! On a terminal it is drawn anew every few seconds until somebody presses `q`; elsewhere, and with `--once` or `-o json`, it is
//! told once. The console computes all values, rates among them: one query for each column.
//!
//! Modules: `rows` (what is asked, and who comes first), `screen` (how it looks), both pure; `terminal` (whose screen it is, and
//! how that is given back).

mod rows;
mod screen;
mod terminal;

use std::{io::IsTerminal, time::Duration};

use clap::{Args, ValueEnum};
use futures_util::future::try_join_all;
use muster_topics::select::HostSelect;

use self::{
    rows::{Row, Sort, Table, Values},
    screen::{Frame, Look},
    terminal::{Input, Terminal},
};
use super::{Session, metric, print, target};
use crate::{
    api::{Host, Unit},
    clock,
    failure::{Context, Failure, Kind},
};

/// Show what hosts or units do now, the busiest first
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  muster top\n  muster top units --sort memory\n  muster top --select 'label.site=north'\n  \
                        muster top --once\n  muster top units -o json\n\n\
                        Keys: c cpu, m memory, d disk, n network, h name: who comes first; space: now; q: the end.\n\
                        What --select takes is what `muster exec --select` takes; of units, those of the hosts that it picks.\n\
                        Where the output is no terminal it is told once."
)]
pub struct Top {
    /// Of what
    #[arg(value_enum, default_value_t = What::Hosts)]
    pub what: What,
    /// Only hosts that this expression picks
    #[arg(long, value_name = "EXPRESSION")]
    pub select: Option<HostSelect>,
    /// Who comes first
    #[arg(long, value_enum, default_value_t = Sort::Cpu)]
    pub sort: Sort,
    /// How often it is drawn anew; hosts measure every ten seconds
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub every: humantime::Duration,
    /// Tell it once, and end
    #[arg(long)]
    pub once: bool,
}

/// Of what to show.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Hosts
    Hosts,
    /// Units
    Units,
}

/// The least time from one drawing to the next: nothing is measured more often.
const EVERY_MIN: Duration = Duration::from_millis(500);

/// Does it.
///
/// # Errors
/// If the console cannot be asked, or the terminal not be used.
pub async fn run(top: Top, session: &Session) -> Result<(), Failure> {
    if session.printer.is_for_programs() {
        let table = ask(&top, session).await?;
        return session.printer.data(&table.rows);
    }
    if top.once || !std::io::stdout().is_terminal() {
        let table = ask(&top, session).await?;
        let frame = Frame { table: &table, sort: top.sort, every: None, look: Look::plain() };
        return print::write_out(&frame.text());
    }
    live(top, session).await
}

/// Draws until somebody has seen enough. Whichever way this ends, dropping the terminal gives it back.
async fn live(mut top: Top, session: &Session) -> Result<(), Failure> {
    let every = Duration::from(top.every).max(EVERY_MIN);
    // Asked before the screen is taken: what is wrong with that is then said where it is read.
    let mut table = ask(&top, session).await?;
    let mut terminal = Terminal::take().trying("using the terminal")?;
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let frame = Frame { table: &table, sort: top.sort, every: Some(every), look: terminal.look() };
        terminal.draw(&frame.text()).trying("using the terminal")?;
        // Each arm is cancel-safe: a tick comes again, and a key that is not read stays with the kernel.
        let input = tokio::select! {
            _ = ticks.tick() => Input::Now,
            input = terminal.input() => input,
        };
        match input {
            Input::Quit => return Ok(()),
            Input::Sort(sort) => top.sort = sort,
            Input::Now => match ask(&top, session).await {
                Ok(now) => table = now,
                // A console that is started again is one to wait for.
                Err(failure) if failure.kind == Kind::Unreachable => table.trouble = failure.message,
                Err(failure) => return Err(failure),
            },
            Input::Other => {}
        }
        table.sort(top.sort);
    }
}

/// Asks the console for everything.
async fn ask(top: &Top, session: &Session) -> Result<Table, Failure> {
    let queries = match top.what {
        What::Hosts => rows::HOSTS,
        What::Units => rows::UNITS,
    };
    let now_ms = clock::now_ms();
    let values = |query: &'static rows::Query| async move {
        let series = metric::instant(session, query.expression, now_ms).await?;
        Ok::<Values, Failure>(rows::values(series))
    };
    let (hosts, answers) =
        tokio::try_join!(session.client.get::<Vec<Host>>("hosts", &[]), try_join_all(queries.iter().map(values)),)?;
    let picked = match &top.select {
        Some(select) => Some(target::picked(session, select).await?),
        None => None,
    };
    let is_picked = |host: &str| picked.as_ref().is_none_or(|picked| picked.iter().any(|id| id == host));
    let hosts: Vec<Host> = hosts.into_iter().filter(|host| is_picked(&host.id.to_string())).collect();
    let rows: Vec<Row> = match top.what {
        What::Hosts => hosts.iter().map(|host| rows::host(host, &answers)).collect(),
        What::Units => {
            let units: Vec<Unit> = session.client.get("units", &[]).await?;
            let shown = units.iter().filter(|unit| is_picked(&unit.host.to_string()));
            shown.map(|unit| rows::unit(unit, &answers)).collect()
        }
    };
    let online = hosts.iter().filter(|host| rows::is_online(host)).count();
    let mut table = Table { what: top.what, rows, hosts: hosts.len(), online, at_ms: now_ms, trouble: None };
    table.sort(top.sort);
    Ok(table)
}
