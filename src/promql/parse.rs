//! Parses a query. The `promql-parser` crate knows the grammar; here its tree is checked and converted into one that can
//! be evaluated, and unsupported features are refused by name.
//!
//! **Invariant: a text from outside costs a bounded amount**, of memory and of stack: it is limited before it is parsed,
//! because the parser's tree is as deep as the text is nested or chained.

use std::time::{Duration, SystemTime};

use promql_parser::{
    label::{MatchOp, Matcher as GivenMatcher},
    parser::{self as given, Expr as Given, LabelModifier, Offset, VectorMatchCardinality},
};

use super::matcher_list::Matchers;
use crate::{
    date::DatePart,
    error::Error,
    labels::{NAME, is_label_name},
    matcher::{MatchOperator, Matcher, Pattern},
    math::MathFunction,
    over_time::OverTimeFunction,
    query_range::{Millis, SUBQUERY_STEP_MS},
    text,
    tree::{
        Aggregate, Aggregation, AtModifier, Binary, Expr, Grouping, ManySide, Matching, Operator, QueryNode, QueryRoot,
        RangeVector, ValueType, VectorSelector,
    },
};

/// Longest query: enough for a regular expression with a few hundred hosts.
const TEXT_MAX_BYTES: usize = 16 * 1024;
/// Largest number of operators and brackets, each of which can make the tree one level deeper. Dashboards use a few
/// dozen.
const SIGNS_MAX: usize = 500;
/// Deepest tree that is evaluated: deeper than people write, and far within a thread's stack.
const DEPTH_MAX: usize = 100;
/// Largest number of matchers in one selector.
const MATCHERS_MAX: usize = 32;
/// Longest range or offset: a hundred years.
const DURATION_MAX_MS: Millis = 100 * 365 * 24 * 3_600_000;

/// Parses a query.
pub(crate) fn query(text: &str) -> Result<QueryRoot, Error> {
    check_size(text)?;
    let text = text::normalise(text).map_err(|error| wrong(format!("at byte {}: {error}", error.offset + 1)))?;
    let tree = given::parse(&text).map_err(|problem| wrong(problem.trim()))?;
    match bare(&tree) {
        Given::StringLiteral(literal) => Ok(QueryRoot::Text(literal.val.clone())),
        Given::MatrixSelector(_) | Given::Subquery(_) => Ok(QueryRoot::Ranged(ranged(&tree, 0)?)),
        _ => Ok(QueryRoot::Node(Box::new(node(&tree, 0)?))),
    }
}

fn wrong(problem: impl std::fmt::Display) -> Error {
    Error::query(format!("invalid query: {problem}"))
}

fn missing(what: impl std::fmt::Display) -> Error {
    Error::query(format!("{what} is not supported"))
}

/// Refuses a query that would be too large for the parser or for later recursion.
fn check_size(text: &str) -> Result<(), Error> {
    if text.len() > TEXT_MAX_BYTES {
        return Err(wrong(format!("it has more than {TEXT_MAX_BYTES} bytes")));
    }
    let mut signs = 0;
    let mut chars = text.chars();
    let mut word = String::new();
    while let Some(c) = chars.next() {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c.to_ascii_lowercase());
            continue;
        }
        signs += usize::from(matches!(word.as_str(), "and" | "or" | "unless" | "atan2" | "offset"));
        word.clear();
        match c {
            '#' => while chars.next().is_some_and(|c| c != '\n') {},
            '"' | '\'' | '`' => {
                while let Some(next) = chars.next().filter(|next| *next != c) {
                    if next == '\\' && c != '`' {
                        chars.next();
                    }
                }
            }
            '(' | '[' | '{' | '+' | '-' | '*' | '/' | '%' | '^' | '<' | '>' | '=' | '!' | '@' => signs += 1,
            _ => {}
        }
        if signs > SIGNS_MAX {
            return Err(wrong(format!("it has more than {SIGNS_MAX} operators and brackets")));
        }
    }
    Ok(())
}

/// The tree without enclosing parentheses.
fn bare(tree: &Given) -> &Given {
    let mut tree = tree;
    while let Given::Paren(inner) = tree {
        tree = &inner.expr;
    }
    tree
}

fn deeper(depth: usize) -> Result<usize, Error> {
    if depth >= DEPTH_MAX { Err(wrong(format!("it is nested deeper than {DEPTH_MAX}"))) } else { Ok(depth + 1) }
}

fn vector_node(expr: Expr, fixed: bool) -> QueryNode {
    QueryNode { expr, kind: ValueType::Vector, fixed }
}

fn node(tree: &Given, depth: usize) -> Result<QueryNode, Error> {
    let depth = deeper(depth)?;
    match bare(tree) {
        Given::NumberLiteral(literal) => {
            Ok(QueryNode { expr: Expr::Number(literal.val), kind: ValueType::Scalar, fixed: true })
        }
        Given::VectorSelector(vector) => {
            let selector = selector(vector)?;
            let fixed = selector.at.is_some();
            Ok(vector_node(Expr::Selector(selector), fixed))
        }
        Given::Unary(unary) => {
            let inner = node(&unary.expr, depth)?;
            let (kind, fixed) = (inner.kind, inner.fixed);
            Ok(QueryNode { expr: Expr::Negate(Box::new(inner)), kind, fixed })
        }
        Given::Binary(given) => binary(given, depth),
        Given::Aggregate(given) => aggregate(given, depth),
        Given::Call(given) => call(given, depth),
        Given::StringLiteral(_) => Err(wrong("expected a number or a vector, found a string")),
        Given::MatrixSelector(_) | Given::Subquery(_) => {
            Err(wrong("expected a number or an instant vector, found a range vector"))
        }
        _ => Err(missing("this extension of the language")),
    }
}

fn vector(tree: &Given, depth: usize, place: &str) -> Result<Box<QueryNode>, Error> {
    let node = node(tree, depth)?;
    if node.kind == ValueType::Vector { Ok(Box::new(node)) } else { Err(unexpected("instant vector", place, "scalar")) }
}

fn scalar(tree: &Given, depth: usize, place: &str) -> Result<QueryNode, Error> {
    let node = node(tree, depth)?;
    if node.kind == ValueType::Scalar { Ok(node) } else { Err(unexpected("scalar", place, "instant vector")) }
}

fn text(tree: &Given, place: &str) -> Result<String, Error> {
    match bare(tree) {
        Given::StringLiteral(literal) => Ok(literal.val.clone()),
        _ => Err(unexpected("string", place, "something else")),
    }
}

fn unexpected(wanted: &str, place: &str, got: &str) -> Error {
    wrong(format!("expected type {wanted} in {place}, got {got}"))
}

fn ranged(tree: &Given, depth: usize) -> Result<RangeVector, Error> {
    match bare(tree) {
        Given::MatrixSelector(matrix) => {
            Ok(RangeVector::Selector { selector: selector(&matrix.vs)?, range_ms: positive(matrix.range)? })
        }
        Given::Subquery(subquery) => {
            let step_ms = subquery.step.map(positive).transpose()?.unwrap_or(SUBQUERY_STEP_MS);
            Ok(RangeVector::Subquery {
                node: vector(&subquery.expr, deeper(depth)?, "a subquery")?,
                range_ms: positive(subquery.range)?,
                step_ms,
                at: subquery.at.as_ref().map(at).transpose()?,
                offset_ms: offset(subquery.offset.as_ref())?,
            })
        }
        _ => Err(wrong("expected a range vector").with_hint("such as m[5m]")),
    }
}

fn millis(duration: Duration) -> Result<Millis, Error> {
    let ms = Millis::try_from(duration.as_millis()).ok().filter(|ms| *ms <= DURATION_MAX_MS);
    ms.ok_or_else(|| wrong("duration out of range"))
}

fn positive(duration: Duration) -> Result<Millis, Error> {
    let ms = millis(duration)?;
    if ms > 0 { Ok(ms) } else { Err(wrong("duration must be greater than 0")) }
}

fn offset(given: Option<&Offset>) -> Result<Millis, Error> {
    match given {
        None => Ok(0),
        Some(Offset::Pos(duration)) => millis(*duration),
        Some(Offset::Neg(duration)) => Ok(-millis(*duration)?),
    }
}

fn at(given: &given::AtModifier) -> Result<AtModifier, Error> {
    let time = match given {
        given::AtModifier::Start => return Ok(AtModifier::Start),
        given::AtModifier::End => return Ok(AtModifier::End),
        given::AtModifier::At(time) => *time,
    };
    let far = |_| wrong("timestamp out of bounds for @ modifier");
    let ms = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Millis::try_from(since.as_millis()).map_err(far)?,
        Err(before) => -Millis::try_from(before.duration().as_millis()).map_err(far)?,
    };
    Ok(AtModifier::Time(ms))
}

fn selector(given: &given::VectorSelector) -> Result<VectorSelector, Error> {
    if !given.matchers.or_matchers.is_empty() {
        return Err(missing("`or` between matchers"));
    }
    let mut matchers = Vec::new();
    if let Some(name) = given.name.as_ref().filter(|name| !name.is_empty()) {
        matchers.push(Matcher { label: NAME.to_owned(), test: MatchOperator::Equal(name.clone()) });
    }
    for one in &given.matchers.matchers {
        matchers.push(matcher(one)?);
    }
    if matchers.len() > MATCHERS_MAX {
        return Err(wrong(format!("a selector has more than {MATCHERS_MAX} matchers")));
    }
    if matchers.iter().all(|matcher| matcher.test.accepts("")) {
        return Err(wrong("vector selector must contain at least one non-empty matcher"));
    }
    let at = given.at.as_ref().map(at).transpose()?;
    Ok(VectorSelector { matchers: Matchers(matchers), at, offset_ms: offset(given.offset.as_ref())? })
}

fn matcher(given: &GivenMatcher) -> Result<Matcher, Error> {
    let pattern = || {
        let text = text::reveal(&given.value).ok_or_else(|| wrong("expected a regular expression"))?;
        Pattern::new(&text).map_err(|problem| wrong(format!("the regular expression {text:?}: {problem}")))
    };
    let test = match given.op {
        MatchOp::Equal => MatchOperator::Equal(given.value.clone()),
        MatchOp::NotEqual => MatchOperator::NotEqual(given.value.clone()),
        MatchOp::Re(_) => MatchOperator::Match(pattern()?),
        MatchOp::NotRe(_) => MatchOperator::NotMatch(pattern()?),
    };
    Ok(Matcher { label: given.name.clone(), test })
}

fn grouping(given: Option<&LabelModifier>, by_default: Grouping) -> Grouping {
    match given {
        Some(LabelModifier::Include(labels)) => Grouping::Only(labels.labels.clone()),
        Some(LabelModifier::Exclude(labels)) => Grouping::Without(labels.labels.clone()),
        None => by_default,
    }
}

fn operator(sign: &str) -> Option<Operator> {
    Some(match sign {
        "+" => Operator::Add,
        "-" => Operator::Subtract,
        "*" => Operator::Multiply,
        "/" => Operator::Divide,
        "%" => Operator::Modulo,
        "^" => Operator::Power,
        "atan2" => Operator::Atan2,
        "==" => Operator::Equal,
        "!=" => Operator::NotEqual,
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        "and" => Operator::And,
        "or" => Operator::Or,
        "unless" => Operator::Unless,
        _ => return None,
    })
}

fn binary(given: &given::BinaryExpr, depth: usize) -> Result<QueryNode, Error> {
    let sign = given.op.to_string();
    let operator = operator(&sign).ok_or_else(|| missing(format!("the operator {sign:?}")))?;
    let (left, right) = (node(&given.lhs, depth)?, node(&given.rhs, depth)?);
    let scalars = left.kind == ValueType::Scalar && right.kind == ValueType::Scalar;
    let as_bool = given.modifier.as_ref().is_some_and(|modifier| modifier.return_bool);
    if as_bool && !operator.is_comparison() {
        return Err(wrong("bool modifier can only be used on comparison operators"));
    }
    if scalars && operator.is_comparison() && !as_bool {
        return Err(wrong("comparisons between scalars must use BOOL modifier"));
    }
    if operator.is_set() && (left.kind == ValueType::Scalar || right.kind == ValueType::Scalar) {
        return Err(wrong(format!("set operator {sign:?} not allowed in binary scalar expression")));
    }
    let mut matching = Matching::default();
    if let Some(modifier) = &given.modifier {
        if modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some() {
            return Err(missing("`fill` of a vector matching"));
        }
        matching.labels = grouping(modifier.matching.as_ref(), Grouping::default());
        (matching.many, matching.include) = match &modifier.card {
            VectorMatchCardinality::ManyToOne(labels) => (ManySide::Left, labels.labels.clone()),
            VectorMatchCardinality::OneToMany(labels) => (ManySide::Right, labels.labels.clone()),
            VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany => (ManySide::Neither, Vec::new()),
        };
    }
    if operator.is_set() && matching.many != ManySide::Neither {
        return Err(wrong(format!("no grouping allowed for {sign:?} operation")));
    }
    let kind = if scalars { ValueType::Scalar } else { ValueType::Vector };
    let fixed = left.fixed && right.fixed;
    let binary = Binary { operator, left, right, matching, as_bool };
    Ok(QueryNode { expr: Expr::Binary(Box::new(binary)), kind, fixed })
}

fn aggregate(given: &given::AggregateExpr, depth: usize) -> Result<QueryNode, Error> {
    let name = given.op.to_string();
    let place = format!("aggregation {name}");
    let parameter = || given.param.as_deref().ok_or_else(|| wrong(format!("expected a parameter in {place}")));
    let number = || scalar(parameter()?, depth, &place);
    let function = match name.as_str() {
        "sum" => Aggregation::Sum,
        "avg" => Aggregation::Average,
        "min" => Aggregation::Minimum,
        "max" => Aggregation::Maximum,
        "count" => Aggregation::Count,
        "group" => Aggregation::Group,
        "stddev" => Aggregation::Deviation,
        "stdvar" => Aggregation::Variance,
        "quantile" => Aggregation::Quantile(number()?),
        "topk" => Aggregation::Top(number()?),
        "bottomk" => Aggregation::Bottom(number()?),
        "count_values" => {
            let label = text(parameter()?, &place)?;
            if !is_label_name(&label) {
                return Err(wrong(format!("invalid label name {label:?}")));
            }
            Aggregation::CountValues(label)
        }
        _ => return Err(missing(format!("the aggregation {name}"))),
    };
    let vector = *vector(&given.expr, depth, &place)?;
    let parameter_fixed = match &function {
        Aggregation::Quantile(node) | Aggregation::Top(node) | Aggregation::Bottom(node) => node.fixed,
        _ => true,
    };
    let fixed = vector.fixed && parameter_fixed;
    let grouping = grouping(given.modifier.as_ref(), Grouping::Only(Vec::new()));
    Ok(vector_node(Expr::Aggregate(Box::new(Aggregate { function, vector, grouping })), fixed))
}

/// The arguments of a function.
struct Arguments<'a> {
    place: String,
    given: Vec<&'a Given>,
    depth: usize,
}

impl Arguments<'_> {
    fn count(&self, least: usize, most: usize) -> Result<(), Error> {
        if (least..=most).contains(&self.given.len()) {
            return Ok(());
        }
        let wanted = if least == most { least.to_string() } else { format!("at least {least}") };
        Err(wrong(format!("expected {wanted} argument(s) in {}, got {}", self.place, self.given.len())))
    }

    fn get(&self, index: usize) -> Result<&Given, Error> {
        self.given.get(index).copied().ok_or_else(|| wrong(format!("an argument is missing in {}", self.place)))
    }

    fn vector(&self, index: usize) -> Result<Box<QueryNode>, Error> {
        vector(self.get(index)?, self.depth, &self.place)
    }

    fn scalar(&self, index: usize) -> Result<QueryNode, Error> {
        scalar(self.get(index)?, self.depth, &self.place)
    }

    fn text(&self, index: usize) -> Result<String, Error> {
        text(self.get(index)?, &self.place)
    }

    fn ranged(&self, index: usize) -> Result<RangeVector, Error> {
        ranged(self.get(index)?, self.depth)
    }
}

fn call(given: &given::Call, depth: usize) -> Result<QueryNode, Error> {
    let name = given.func.name;
    let place = format!("call to function {name:?}");
    let arguments = Arguments { place, given: given.args.args.iter().map(AsRef::as_ref).collect(), depth };
    if let Some(function) = OverTimeFunction::named(name) {
        return over(function, &arguments);
    }
    if let Some(function) = MathFunction::named(name) {
        let (least, most) = function.parameters();
        arguments.count(least + 1, most + 1)?;
        let vector = arguments.vector(0)?;
        let parameters =
            (1..arguments.given.len()).map(|index| arguments.scalar(index)).collect::<Result<Vec<_>, _>>()?;
        let fixed = vector.fixed && parameters.iter().all(|node| node.fixed);
        return Ok(vector_node(Expr::Map { function, vector, parameters }, fixed));
    }
    if let Some(function) = DatePart::named(name) {
        arguments.count(0, 1)?;
        let vector = if arguments.given.is_empty() { None } else { Some(arguments.vector(0)?) };
        return Ok(vector_node(Expr::Date { function, vector }, false));
    }
    special(name, &arguments)
}

fn over(function: OverTimeFunction, arguments: &Arguments<'_>) -> Result<QueryNode, Error> {
    let (range, parameter) = match function {
        OverTimeFunction::Quantile => (1, Some(0)),
        OverTimeFunction::PredictLinear => (0, Some(1)),
        _ => (0, None),
    };
    let count = 1 + usize::from(parameter.is_some());
    arguments.count(count, count)?;
    let ranged = arguments.ranged(range)?;
    let parameter = parameter.map(|index| arguments.scalar(index)).transpose()?;
    // A prediction starts at the time of the step, so it differs between steps.
    let fixed = ranged.at().is_some()
        && parameter.as_ref().is_none_or(|node| node.fixed)
        && function != OverTimeFunction::PredictLinear;
    Ok(vector_node(Expr::Over { function, ranged, parameter: parameter.map(Box::new) }, fixed))
}

fn special(name: &str, arguments: &Arguments<'_>) -> Result<QueryNode, Error> {
    let one_vector = || {
        arguments.count(1, 1)?;
        arguments.vector(0)
    };
    match name {
        "time" => arguments.count(0, 0).map(|()| QueryNode { expr: Expr::Time, kind: ValueType::Scalar, fixed: false }),
        "pi" => arguments.count(0, 0).map(|()| QueryNode {
            expr: Expr::Number(std::f64::consts::PI),
            kind: ValueType::Scalar,
            fixed: true,
        }),
        "vector" => {
            arguments.count(1, 1)?;
            let scalar = arguments.scalar(0)?;
            let fixed = scalar.fixed;
            Ok(vector_node(Expr::ToVector(Box::new(scalar)), fixed))
        }
        "scalar" => {
            let vector = one_vector()?;
            let fixed = vector.fixed;
            Ok(QueryNode { expr: Expr::ToScalar(vector), kind: ValueType::Scalar, fixed })
        }
        "timestamp" => Ok(vector_node(Expr::Timestamp(one_vector()?), false)),
        "sort" | "sort_desc" => {
            let vector = one_vector()?;
            let fixed = vector.fixed;
            Ok(vector_node(Expr::Sort { vector, descending: name == "sort_desc" }, fixed))
        }
        "absent" => {
            let vector = one_vector()?;
            let labels = match &vector.expr {
                Expr::Selector(selector) => selector.matchers.wanted(),
                _ => crate::Labels::default(),
            };
            let fixed = vector.fixed;
            Ok(vector_node(Expr::Absent { vector, labels }, fixed))
        }
        "absent_over_time" => {
            arguments.count(1, 1)?;
            let ranged = arguments.ranged(0)?;
            let labels = match &ranged {
                RangeVector::Selector { selector, .. } => selector.matchers.wanted(),
                RangeVector::Subquery { .. } => crate::Labels::default(),
            };
            let fixed = ranged.at().is_some();
            Ok(vector_node(Expr::AbsentOver { ranged, labels }, fixed))
        }
        "histogram_quantile" => {
            arguments.count(2, 2)?;
            let (quantile, vector) = (Box::new(arguments.scalar(0)?), arguments.vector(1)?);
            let fixed = quantile.fixed && vector.fixed;
            Ok(vector_node(Expr::HistogramQuantile { quantile, vector }, fixed))
        }
        "label_replace" => label_replace(arguments),
        "label_join" => label_join(arguments),
        _ => Err(missing(format!("the function {name}"))),
    }
}

fn label_replace(arguments: &Arguments<'_>) -> Result<QueryNode, Error> {
    arguments.count(5, 5)?;
    let vector = arguments.vector(0)?;
    let [to, replacement, from, pattern] =
        [arguments.text(1)?, arguments.text(2)?, arguments.text(3)?, arguments.text(4)?];
    let pattern = Pattern::with_groups(&pattern)
        .map_err(|problem| wrong(format!("invalid regular expression in label_replace(): {pattern:?}: {problem}")))?;
    if !is_label_name(&to) {
        return Err(wrong(format!("invalid destination label name in label_replace(): {to:?}")));
    }
    let fixed = vector.fixed;
    Ok(vector_node(Expr::LabelReplace { vector, to, replacement, from, pattern: Box::new(pattern) }, fixed))
}

fn label_join(arguments: &Arguments<'_>) -> Result<QueryNode, Error> {
    arguments.count(3, usize::MAX)?;
    let vector = arguments.vector(0)?;
    let (to, separator) = (arguments.text(1)?, arguments.text(2)?);
    let from = (3..arguments.given.len()).map(|index| arguments.text(index)).collect::<Result<Vec<_>, _>>()?;
    if let Some(bad) = from.iter().find(|name| !is_label_name(name)) {
        return Err(wrong(format!("invalid source label name in label_join(): {bad:?}")));
    }
    if !is_label_name(&to) {
        return Err(wrong(format!("invalid destination label name in label_join(): {to:?}")));
    }
    let fixed = vector.fixed;
    Ok(vector_node(Expr::LabelJoin { vector, to, separator, from }, fixed))
}
