//! The result as a picture: connections by second, and latencies by quantile.

use std::path::Path;

use hdrhistogram::Histogram;
use plotters::prelude::*;

use crate::report::Second;
use crate::stats::Latencies;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("plot {path}: {reason}")]
pub struct PlotError {
    path: String,
    reason: String,
}

/// Nines on the axis of quantiles: 99.99 %.
const NINES: f64 = 4.0;

/// Draws seconds and latencies into an SVG file, as far as there are any.
///
/// # Errors
/// [`PlotError`] if the file cannot be written.
pub fn draw(path: &Path, by_second: &[Second], latencies: Option<&Latencies>) -> Result<(), PlotError> {
    draw_with(path, |root| {
        let (above, below) = root.split_vertically(350);
        draw_seconds(&above, by_second)?;
        latencies.map_or(Ok(()), |latencies| draw_latencies(&below, latencies))
    })
}

/// Draws named values as bars into an SVG file.
///
/// # Errors
/// [`PlotError`] if the file cannot be written.
pub fn bars(path: &Path, title: &str, bars: &[(&str, f64)]) -> Result<(), PlotError> {
    draw_with(path, |root| {
        let top = bars.iter().map(|(_, value)| *value).fold(1.0, f64::max) * 1.15;
        let mut chart = ChartBuilder::on(root)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..bars.len().max(1) as f64, 0.0..top)?;
        chart.configure_mesh().disable_x_mesh().disable_x_axis().draw()?;
        for (at, (name, value)) in (0..).zip(bars) {
            let left = f64::from(at) + 0.2;
            chart.draw_series([Rectangle::new(
                [(left, 0.0), (left + 0.6, *value)],
                BLUE.mix(0.6).filled(),
            )])?;
            let label = format!("{name}: {value:.0}");
            chart.draw_series([Text::new(label, (left, value + top * 0.03), ("sans-serif", 16))])?;
        }
        Ok(())
    })
}

fn draw_with(path: &Path, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<(), PlotError> {
    let failed = |reason: String| PlotError {
        path: path.display().to_string(),
        reason,
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|error| failed(error.to_string()))?;
    }
    let drawn = (|| -> Drawn {
        let root = SVGBackend::new(path, (900, 700)).into_drawing_area();
        root.fill(&WHITE)?;
        draw(&root)?;
        root.present()?;
        Ok(())
    })();
    drawn.map_err(|error| failed(error.to_string()))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Name, colour, and what of a second is shown.
type Series = (&'static str, &'static RGBColor, fn(&Second) -> u64);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_seconds(area: &Area<'_>, by_second: &[Second]) -> Drawn {
    let end = by_second.len().max(1) as f64;
    let per_second = |second: &Second| second.completed.max(second.accepted).max(second.started) as f64;
    let top = by_second.iter().map(per_second).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption("connections per second", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().x_desc("seconds").draw()?;
    let series: [Series; 3] = [
        ("started", &BLUE, |second| second.started),
        ("completed", &GREEN, |second| second.completed),
        ("failed", &RED, |second| second.failed),
    ];
    for (name, color, value) in series {
        let points = by_second
            .iter()
            .zip(0..)
            .map(|(second, at)| (f64::from(at) + 0.5, value(second) as f64));
        let line = LineSeries::new(points, color.stroke_width(2));
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], *color));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

fn draw_latencies(area: &Area<'_>, latencies: &Latencies) -> Drawn {
    let highest = latencies
        .iter()
        .map(|(_, histogram)| histogram.max())
        .max()
        .unwrap_or(0);
    let lowest = latencies
        .iter()
        .filter(|(_, histogram)| !histogram.is_empty())
        .map(|(_, histogram)| histogram.min())
        .min();
    let micros = |nanos: u64| (nanos as f64 / 1e3).max(0.001);
    let (bottom, top) = (micros(lowest.unwrap_or(1)) * 0.8, micros(highest) * 1.25);
    let mut chart = ChartBuilder::on(area)
        .caption("latency in µs by quantile", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..NINES, (bottom..top.max(bottom * 2.0)).log_scale())?;
    let label = |nines: &f64| format!("{} %", 100.0 - 100.0 / 10f64.powf(*nines));
    chart
        .configure_mesh()
        .x_labels(5)
        .x_label_formatter(&label)
        .x_desc("quantile")
        .draw()?;
    for ((name, histogram), color) in latencies.iter().zip([&BLUE, &GREEN, &BLACK]) {
        let line = LineSeries::new(quantile_points(histogram), color.stroke_width(2));
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], *color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

/// Quantiles on an axis of nines (0 is none, 1 is 90 %, 2 is 99 %) against microseconds.
fn quantile_points(histogram: &Histogram<u64>) -> impl Iterator<Item = (f64, f64)> + '_ {
    let steps = if histogram.is_empty() { 0 } else { 200 };
    (0..steps).map(move |step| {
        let nines = NINES * f64::from(step) / 200.0;
        let nanos = histogram.value_at_quantile(1.0 - 10f64.powf(-nines));
        (nines, (nanos as f64 / 1e3).max(0.001))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_with_and_without_latencies() {
        let directory = std::env::temp_dir().join(format!("trafficengine-plot-{}", std::process::id()));
        let mut latencies = Latencies::default();
        (1..1000).for_each(|micros| latencies.connect.record(micros * 1000).unwrap());
        let seconds: Vec<_> = (0..5)
            .map(|second| Second {
                second,
                started: second * 10,
                ..Second::default()
            })
            .collect();
        for (name, latencies) in [("with.svg", Some(&latencies)), ("without.svg", None)] {
            let path = directory.join(name);
            draw(&path, &seconds, latencies).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            assert!(svg.contains("<svg") && svg.contains("connections per second"));
            assert_eq!(svg.contains("latency in µs"), latencies.is_some());
        }
        draw(&directory.join("empty.svg"), &[], Some(&Latencies::default())).unwrap();
        bars(&directory.join("bars.svg"), "costs", &[("one", 1.0), ("two", 2.0)]).unwrap();
        let svg = std::fs::read_to_string(directory.join("bars.svg")).unwrap();
        assert!(svg.contains("one: 1") && svg.contains("two: 2"));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let error = draw(Path::new("/proc/nowhere/x.svg"), &[], None).unwrap_err();
        assert!(error.to_string().starts_with("plot /proc/nowhere/x.svg: "), "{error}");
    }
}
