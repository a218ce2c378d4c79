//! The tree of a checked query: each node can be evaluated as it stands.

use super::{labels::Labels, matcher_list::Matchers};
use crate::{
    date::DatePart, labels::NAME, matcher::Pattern, math::MathFunction, over_time::OverTimeFunction,
    query_range::Millis,
};

/// The type of a whole query.
#[derive(Debug)]
pub(crate) enum QueryRoot {
    Text(String),
    Node(Box<QueryNode>),
    Ranged(RangeVector),
}

/// A part of a query that has a value at each step.
#[derive(Debug)]
pub(crate) struct QueryNode {
    pub(crate) expr: Expr,
    pub(crate) kind: ValueType,
    /// Whether the value is the same at every step, so that it is evaluated once.
    pub(crate) fixed: bool,
}

/// The kind of a node's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    Scalar,
    Vector,
}

#[derive(Debug)]
pub(crate) enum Expr {
    Number(f64),
    Time,
    Selector(VectorSelector),
    Negate(Box<QueryNode>),
    Binary(Box<Binary>),
    Aggregate(Box<Aggregate>),
    Over { function: OverTimeFunction, ranged: RangeVector, parameter: Option<Box<QueryNode>> },
    AbsentOver { ranged: RangeVector, labels: Labels },
    Map { function: MathFunction, vector: Box<QueryNode>, parameters: Vec<QueryNode> },
    Date { function: DatePart, vector: Option<Box<QueryNode>> },
    Timestamp(Box<QueryNode>),
    Absent { vector: Box<QueryNode>, labels: Labels },
    ToScalar(Box<QueryNode>),
    ToVector(Box<QueryNode>),
    Sort { vector: Box<QueryNode>, descending: bool },
    HistogramQuantile { quantile: Box<QueryNode>, vector: Box<QueryNode> },
    LabelReplace { vector: Box<QueryNode>, to: String, replacement: String, from: String, pattern: Box<Pattern> },
    LabelJoin { vector: Box<QueryNode>, to: String, separator: String, from: Vec<String> },
}

/// A selector of series, and the time at which they are read.
#[derive(Debug)]
pub(crate) struct VectorSelector {
    pub(crate) matchers: Matchers,
    pub(crate) at: Option<AtModifier>,
    pub(crate) offset_ms: Millis,
}

/// A time that is the same at all steps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtModifier {
    Start,
    End,
    Time(Millis),
}

/// A part with several samples at each step.
#[derive(Debug)]
pub(crate) enum RangeVector {
    Selector { selector: VectorSelector, range_ms: Millis },
    Subquery { node: Box<QueryNode>, range_ms: Millis, step_ms: Millis, at: Option<AtModifier>, offset_ms: Millis },
}

impl RangeVector {
    pub(crate) fn at(&self) -> Option<AtModifier> {
        match self {
            Self::Selector { selector, .. } => selector.at,
            Self::Subquery { at, .. } => *at,
        }
    }

    pub(crate) fn offset_ms(&self) -> Millis {
        match self {
            Self::Selector { selector, .. } => selector.offset_ms,
            Self::Subquery { offset_ms, .. } => *offset_ms,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) operator: Operator,
    pub(crate) left: QueryNode,
    pub(crate) right: QueryNode,
    pub(crate) matching: Matching,
    /// A comparison returns 0 or 1, instead of dropping values.
    pub(crate) as_bool: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Atan2,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Unless,
}

impl Operator {
    pub(crate) fn is_comparison(self) -> bool {
        use Operator::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        matches!(self, Equal | NotEqual | Less | LessOrEqual | Greater | GreaterOrEqual)
    }

    pub(crate) fn is_set(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Unless)
    }
}

/// Which series of the two sides match.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    pub(crate) labels: Grouping,
    pub(crate) many: ManySide,
    /// Labels that the "many" side takes from the "one" side.
    pub(crate) include: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ManySide {
    #[default]
    Neither,
    Left,
    Right,
}

/// The labels that form groups.
#[derive(Debug)]
pub(crate) enum Grouping {
    Only(Vec<String>),
    Without(Vec<String>),
}

impl Default for Grouping {
    fn default() -> Self {
        Self::Without(Vec::new())
    }
}

impl Grouping {
    /// The labels of a series that form its group. The name only counts if it is listed.
    pub(crate) fn of(&self, labels: &Labels) -> Labels {
        match self {
            Self::Only(names) => labels.only(&names.iter().map(String::as_str).collect::<Vec<_>>()),
            Self::Without(names) => labels.without(&names.iter().map(String::as_str).chain([NAME]).collect::<Vec<_>>()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Aggregate {
    pub(crate) function: Aggregation,
    pub(crate) vector: QueryNode,
    pub(crate) grouping: Grouping,
}

#[derive(Debug)]
pub(crate) enum Aggregation {
    Sum,
    Average,
    Minimum,
    Maximum,
    Count,
    Group,
    Deviation,
    Variance,
    Quantile(QueryNode),
    Top(QueryNode),
    Bottom(QueryNode),
    CountValues(String),
}
