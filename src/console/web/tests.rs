//! What pages promise: markup that holds together, and a console that lets nobody in by mistake.

mod charts;
mod fleet;
mod flow;
mod labels;
mod markup;
mod rules;
