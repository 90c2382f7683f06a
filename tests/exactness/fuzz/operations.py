"""The operations of which programs are drawn, as a table of expressions (see `templates`)."""

from __future__ import annotations

COUNTS = """
tf.reduce_max({a:i1+})
tf.reduce_min({a:i1+})
tf.reduce_sum({a:i1})
tf.reduce_sum({a:i1+})
tf.reduce_prod({a:i1})
tf.reduce_mean({a:i1+})
tf.math.count_nonzero({a:*1+}, dtype=tf.int32)
tf.reduce_sum(tf.cast({a:b1+}, tf.int32))
tf.argmax({a:f1}, output_type=tf.int32)
tf.argmin({a:i1}, output_type=tf.int32)
tf.size({a:*1+})
tf.shape({a:*1+})[{=0|-1}]
tf.rank({a:*1+})
B {=-|+|//|*|%} {=1|2|3}
{a:i0} {=-|+|//|*|%} {=1|2|3}
{a:i0} {=-|+|*|//|%} {b:i0}
tf.reduce_max({a:i1+}) - tf.reduce_min({a})
tf.cast(tf.reduce_sum({a:f1+}), tf.int32)
tf.cast({=tf.reduce_mean|tf.reduce_max|tf.norm}({a:f1+}), tf.int32)
tf.cast({=tf.floor|tf.round|tf.math.ceil|}({a:f0}), tf.int32)
tf.minimum({a:i0}, {=1|2|3|B})
tf.maximum({a:i0}, {=0|1|2|B})
tf.clip_by_value({a:i0}, 0, {=2|3})
{=tf.abs|tf.negative|tf.square|tf.sign}({a:i0})
{a:i1}[{b:i0}]
{a:i1}[{=0|-1|B // 2}]
tf.where({a:b0}, {b:i0}, {c:i0})
tf.size(tf.unique({a:i1})[0])
tf.shape(tf.where({a:b1}))[0]
tf.shape(tf.boolean_mask({a:f1+}, m))[0]
tf.cast({=tf.reduce_any|tf.reduce_all}({a:b1+}), tf.int32)
tf.reduce_sum(tf.where({a:b1}, {b:i1}, {=0|1}))
"""

USES_OF_COUNTS = """
{a:*1+}[{n:i0}]
{a:*1+}[{n:i0} - 1]
{a:*1+}[{n:i0}:]
{a:*1+}[:{n:i0}]
{a:*1+}[-{n:i0}:]
{a:*2+}[:, {n:i0}]
{a:*2+}[:, {n:i0} - 1]
{a:*2+}[:, :{n:i0}]
{a:*2+}[:, {n:i0}:]
{a:*2+}[:, {n:i0}:{o:i0}]
{a:*2+}[:, -{n:i0}]
{a:*2+}[..., {n:i0}]
{a:*2+}[..., :{n:i0}, tf.newaxis]
{a:*2+}[:, ::{n:i0}]
{a:*2+}[:, {n:i0}::-1]
tf.reduce_sum({a:f1+}, {@a})[{n:i0}]
tf.reduce_sum({a:f2+}, 0)[{n:i0}:]
tf.reduce_sum({a:f2+}, 0)[..., :{n:i0}]
tf.reduce_{=sum|max}({a:f2+}, 0)[tf.reduce_{=sum|max}({i:i1})]
tf.reduce_sum({a:f2+}, 0)[tf.reduce_sum({i:i1}):]
tf.slice(tf.reduce_sum({a:f2}, 0), [tf.reduce_sum({i:i1})], [{=1|-1}])
tf.slice({a:*1}, [{n:i0}], [{=1|2|-1}])
tf.slice({a:*2}, [0, {n:i0}], [-1, {=1|2|-1}])
tf.slice({a:*2}, [{n:i0}, 0], [{=1|2|-1}, {=1|2|-1}])
tf.slice({a:*2}, [0, 0], [-1, {n:i0}])
tf.slice({a:*3}, [0, {n:i0}, 0], [-1, 1, {o:i0}])
tf.gather({a:*1+}, {n:i0}, axis={@a})
tf.gather({a:*1+}, tf.range({n:i0}), axis={@a})
tf.gather({a:*1+}, [0, {n:i0}], axis={@a})
tf.gather_nd({a:*1+}, [{n:i0}])
tf.gather_nd({a:*2+}, [[0, {n:i0}]])
tf.repeat({a:*1+}, {n:i0}, axis={@a})
tf.repeat({a:*1+}, {n:i1}, axis={@a})
tf.tile({a:*1}, [{n:i0}])
tf.tile({a:*2}, [1, {n:i0}])
tf.tile({a:*2}, [{n:i0}, 1])
tf.tile({a:*1+}[..., tf.newaxis], tf.concat([tf.ones([tf.rank({a})], tf.int32), [{n:i0}]], 0))
tf.broadcast_to({a:*0}, [{n:i0}])
tf.broadcast_to({a:*1}, [{n:i0}, tf.shape({a})[0]])
tf.broadcast_to({a:*1}[:, tf.newaxis], [tf.shape({a})[0], {n:i0}])
tf.ones([B, {n:i0}], tf.float64)
tf.zeros([{n:i0}, B], tf.float64)
tf.zeros([{n:i0}], tf.float64)
tf.ones([{n:i0}, {o:i0}], tf.float64)
tf.fill([{n:i0}], {a:f0})
tf.fill([B, {n:i0}], {a:f0})
tf.eye({n:i0}, dtype=tf.float64)
tf.eye({n:i0}, {o:i0}, dtype=tf.float64)
tf.eye(B, dtype=tf.float64)
tf.range({n:i0})
tf.range({n:i0}, {o:i0})
tf.range({n:i0}, {=8|B|B * 2})
tf.range({n:i0}, 0, -1)
tf.cast(tf.range({n:i0}), tf.float64)
tf.linspace({a:f0}, {=1.0|2.0} * {a}, {n:i0})
tf.one_hot({i:i1}, {n:i0}, dtype=tf.float64)
tf.one_hot({n:i0}, {=4|B}, dtype=tf.float64)
tf.one_hot({n:i0}, {o:i0}, dtype=tf.float64)
tf.pad({a:*1}, [[{n:i0}, 0]])
tf.pad({a:*2}, [[0, 0], [0, {n:i0}]])
tf.pad({a:*2}, [[0, 0], [{n:i0}, 1]], constant_values={=0|1})
tf.pad({a:*2}, [[{=0|1}, {n:i0}], [0, 0]])
tf.pad({a:*2}, [[0, 0], [0, 6 - tf.shape({a})[1]]])
tf.pad({a:*1}, [[0, tf.maximum({n:i0} - tf.shape({a})[0], 0)]])
tf.math.unsorted_segment_sum({a:f1+}, tf.abs({i:i1}), {n:i0})
tf.math.unsorted_segment_{=sum|max|mean|prod}({a:f1+}, {i:i1}, {n:i0} + {=1|2})
tf.math.unsorted_segment_{=sum|min|mean}({a:f1+}, {i:i1}, 5)
tf.math.segment_{=sum|mean|max}({a:f1+}, tf.sort(tf.abs({i:i1})))
tf.math.bincount(tf.abs({i:i1}), minlength={n:i0})
tf.math.bincount(tf.abs({i:i1+}), maxlength=6, minlength=6)
tf.scatter_nd(tf.abs({i:i1})[:, tf.newaxis], {a:f1+},
    tf.concat([[{n:i0} + 1], tf.shape({a})[1:]], 0))
tf.scatter_nd([[{n:i0}]], [{a:f0}], [{=5|B + 4}])
tf.tensor_scatter_nd_add({a:f1}, [[{n:i0}]], [{b:f0}])
tf.tensor_scatter_nd_{=update|add|max}({a:f1}, tf.abs({i:i1})[:, tf.newaxis], {b:f1})
tf.split({a:*1+}, [{n:i0}, tf.shape({a})[0] - {n}], axis=0)[{=0|1}]
tf.split({a:*2+}, [{n:i0}, tf.shape({a})[1] - {n}], axis=1)[{=0|1}]
tf.while_loop(lambda j, z: j < {n:i0}, lambda j, z: [j + 1, 0.5 * z + {a:f}], [0, {a}])[1]
tf.while_loop(lambda j, z: j < {n:i0}, lambda j, z: [j + 1, tf.sin(z)], [0, {a:f}])[1]
tf.while_loop(lambda j, z: j < 3, lambda j, z: [j + 1, z + {a:f1+}[{n:i0}]],
    [0, tf.zeros_like({a}[0])])[1]
tf.while_loop(lambda j, z: j < 4, lambda j, z: [j + 1, z + x[:, j, 0] * {a:f0}],
    [{n:i0}, tf.zeros_like(s)])[1]
tf.while_loop(lambda j, z: j < 3, lambda j, z:
    [j + 1, z + tf.reduce_sum({a:f1+}) + tf.cast({n:i0}, z.dtype)],
    [0, tf.constant(0.0, tf.float64)])[1]
tf.cond({n:i0} > {=0|1|2|B}, lambda: {a:f}, lambda: 2.0 * {a})
tf.cond({c:b0}, lambda: {a:f}, lambda: tf.sin({a}))
tf.cond({c:b0}, lambda: {a:f1+}[{n:i0}], lambda: {a}[0])
tf.cond({c:b0}, lambda: tf.reduce_sum({a:f1+}, 0), lambda: tf.reduce_max({a}, 0))
tf.switch_case({n:i0}, [lambda: {a:f}, lambda: 2.0 * {a}, lambda: tf.cos({a})])
tf.map_fn(lambda row: row[{n:i0}], {a:f2+})
tf.map_fn(lambda row: tf.reduce_sum(row) * tf.cast({n:i0}, tf.float64), {a:f1+})
tf.vectorized_map(lambda row: tf.reduce_max(row) + {a:f0}, {b:f2+})
tf.scan(lambda total, row: 0.5 * total + row, {a:f1+})
tf.scan(lambda total, row: total * 0.5 + row, tf.transpose({a:f2}), {b:f1})
tf.roll({a:*1+}, {n:i0}, {@a})
tf.reverse_sequence({a:*2+}, {i:i1}, seq_axis=1, batch_axis=0)
tf.sequence_mask({i:i1}, {n:i0}, dtype={=tf.float64|tf.bool})
tf.sequence_mask({i:i1}, dtype={=tf.float64|tf.bool})
tf.sequence_mask({n:i0}, {=5|B}, dtype={=tf.float64|tf.bool})
tf.linalg.band_part({a:f2+}, {n:i0}, {=0|-1|1})
tf.linalg.diag({a:f1})
tf.math.top_k({a:f1+}, {n:i0})[{=0|1}]
tf.math.in_top_k({i:i1}, tf.cast({a:f2}, tf.float32), {n:i0})
tf.nn.embedding_lookup({a:f1+}, {n:i0})
tf.reshape({a:*1+}, [{n:i0}, -1])
tf.reshape({a:*1+}, [-1, {n:i0}])
{a:f} * tf.cast({n:i0}, tf.float64)
{a:f} / tf.cast({n:i0}, tf.float64)
{a:f} / tf.cast({n:i0} - {=1|2}, tf.float64)
{a:f} / tf.cast(B - {=1|2}, tf.float64)
tf.reduce_sum({a:f1+}, {@a}) / tf.cast({n:i0} - 1, tf.float64)
tf.reduce_sum({a:f1+}) / tf.cast(B - 1, tf.float64)
tf.math.divide_no_nan({a:f}, tf.cast({n:i0}, tf.float64))
{a:f} ** tf.cast({n:i0}, tf.float64)
{a:f} + tf.cast({n:i0}, tf.float64)
{a:f1+} + tf.cast({n:i1}, tf.float64)[0]
{a:i1+} {=+|-|*|//|%} {n:i0}
tf.cast({n:i0}, tf.float64)
tf.cast({i:i1+}, tf.float64)
tf.equal({i:i1}, {n:i0})
{i:i0} {=<|>=} {n:i0}
{i:i1+} {=<|>=} {n:i0}
tf.math.reduce_variance({a:f1+}, 0) * tf.cast(B, tf.float64) / tf.cast(B - 1, tf.float64)
tf.image.resize(tf.ones([2, 2, 2, 1]), [{n:i0}, 2])[:, 0, 0, 0]
tf.ensure_shape({a:*1+}[..., :{n:i0}], [None] * {a}.shape.rank)
tf.reduce_sum({a:f1+}[:{n:i0}], 0)
tf.reduce_mean({a:f2+}[:, :{n:i0}], {=0|1})
tf.function(lambda z: z[{n:i0}], jit_compile=False)({a:*1+})
tf.function(lambda z, j: z[:, j])({a:*2+}, {n:i0})
"""

REDUCTIONS = """
tf.reduce_{=sum|mean|max|min}({a:f1+})
tf.reduce_{=sum|mean|max|min|prod}({a:f1+}, {@a})
tf.reduce_{=sum|mean|max|min}({a:f1+}, 0)
tf.reduce_{=sum|mean|max}({a:f1+}, 0, keepdims=True)
tf.reduce_{=sum|mean|max}({a:f1+}, {@a}, keepdims=True)
tf.reduce_{=sum|mean|min}({a:f3+}, [0, {=1|2}])
tf.math.reduce_{=variance|std|logsumexp|euclidean_norm}({a:f1+}, {@a})
tf.math.reduce_{=variance|std|logsumexp|euclidean_norm}({a:f1+}, 0)
tf.norm({a:f1+}, ord={=1|2}, axis={@a})
tf.nn.moments({a:f1+}, [0])[{=0|1}]
tf.reduce_{=sum|mean|max|min|prod}({a:i1+}, {@a})
tf.reduce_{=sum|mean|max}({a:i2}, 0)
tf.reduce_mean(tf.reduce_{=sum|max}({a:i2+}, {@a}), {=0|-1})
tf.reduce_{=all|any}({a:b1+}, {@a})
tf.reduce_{=all|any}({a:b1+})
tf.argmax({a:f1+}, {@a}, output_type=tf.int32)
tf.argmin({a:f1+}, 0)
tf.nn.l2_loss({a:f1+})
tf.linalg.trace(tf.matmul({a:f2}, {a}, transpose_a=True))
tf.linalg.global_norm([{a:f}, {b:f}])
tf.add_n([tf.reduce_sum({a:f1+}, 0), tf.reduce_mean({a}, 0)])
tf.reduce_sum({a:f1+}) * tf.reduce_sum({b:f1+})
tf.reduce_sum({a:f1+}) / tf.reduce_sum({b:f1+})
tf.reduce_sum({a:f1+}, 0) / tf.cast(B - {=1|2}, tf.float64)
tf.reduce_{=sum|mean}({a:f1+}) / tf.cast(tf.size({a}) - {=1|3|4|12}, tf.float64)
tf.math.divide_no_nan(tf.reduce_sum({a:f1+}), tf.reduce_sum(tf.cast({m:b1}, tf.float64)))
tf.raw_ops.Div(x=tf.reduce_sum({a:i1+}), y={=2|3|B})
tf.reduce_sum({a:i1+}) {=//|%} {=2|3|B}
tf.reduce_sum(tf.cast({a:f1+}, tf.int32), {@a})
tf.cast(tf.reduce_sum({a:f1+}, 0), tf.int32)
"""

ELEMENTWISE = """
{a:f} {=+|-|*} {b:f}
{a:f} {=+|-|*|/} {b:f0}
{a:f1+} {=+|-|*|/} {b:f1+}
{a:i} {=+|-|*} {b:i}
{a:i} {=//|%} {=2|3}
tf.{=tanh|sin|abs|square|negative|nn.relu|sigmoid|stop_gradient|sign|floor|exp}({a:f})
tf.sqrt(tf.abs({a:f}))
tf.math.log(tf.abs({a:f}))
tf.{=maximum|minimum}({a:f}, {b:f})
tf.{=maximum|minimum}({a:i}, {b:i})
tf.math.divide_no_nan({a:f}, {b:f})
tf.math.floormod({a:f}, {=2.0|0.5})
tf.math.multiply_no_nan({a:f}, {b:f})
tf.clip_by_value({a:f}, -1.0, 1.0)
tf.clip_by_norm({a:f1+}, 1.0)
tf.clip_by_global_norm([{a:f1+}, {b:f}], 1.0)[{=0|1}]
tf.where({m:b}, {a:f}, {b:f})
tf.where({m:b1}[:, tf.newaxis], {a:f2}, {=0.0|-1.0})
tf.where({a:f} > 0.0, {a}, {b:f})
tf.cast({a:b}, tf.float64)
tf.cast({a:b}, tf.int32)
tf.cast({a:f1+}, tf.int32)
tf.cast({a:f}, tf.float32)
{a:f} {=<|>} {b:f}
tf.logical_{=and|or}({a:b}, {b:b})
tf.logical_not({a:b})
tf.equal({a:i}, {=0|1})
tf.add_n([{a:f}, {a}, {a} * 2.0])
{a:f} - tf.reduce_mean({a}, 0)
({a:f1+} - tf.reduce_mean({a}, 0)) / (tf.math.reduce_std({a}, 0) + 0.1)
tf.nn.softmax({a:f1+}, {@a})
tf.nn.log_softmax({a:f2+})
tf.nn.softmax({a:f1+}, 0)
tf.math.l2_normalize({a:f1+}, {@a})
tf.nn.sparse_softmax_cross_entropy_with_logits(tf.abs({i:i1}), {a:f2})
tf.nn.softmax_cross_entropy_with_logits({a:f2}, {b:f2})
{a:f} * 1e300 * 1e10
tf.cumsum({a:f1+}, {@a}, exclusive={=True|False}, reverse={=True|False})
tf.cumsum({a:i1+}, {@a})
tf.math.cumulative_logsumexp({a:f1+}, {@a})
tf.math.cumprod({a:f1+}, {@a})
"""

SHAPES = """
tf.transpose({a:*2+})
tf.transpose({a:*3}, [{=0, 2, 1|2, 0, 1|1, 0, 2}])
tf.linalg.matrix_transpose({a:*2+})
tf.reshape({a:*1+}, [-1])
tf.reshape({a:*1+}, [B, -1])
tf.reshape({a:*1+}, [-1, 3])
tf.reshape({a:*1+}, [tf.size({a}), 1])
tf.reshape({a:*3}, [tf.shape({a})[0] * tf.shape({a})[1], -1])
tf.reshape({a:*2}, [tf.shape({a})[1], tf.shape({a})[0]])
tf.expand_dims({a:*}, {=0|-1})
{a:*1+}[tf.newaxis]
{a:*1+}[..., tf.newaxis]
tf.squeeze({a:*1+})
{a:*1+}[::-1]
{a:*1+}[::2]
{a:*1+}[1:]
{a:*1+}[:-1]
{a:*1+}[{=0|-1}]
{a:*2+}[:, {=0|-1|::-1|1:|::2|:2}]
{a:*2+}[..., {=0|-1|::-1|1:}]
{a:*1+}[B // 2:]
{a:*1+}[:B // 2]
{a:*1+}[B - 1]
tf.concat([{a:*1+}, {b:*1+}], {@a})
tf.concat([{a:*1+}, {b:*1+}], 0)
tf.concat([{a:*1+}, {a}[:1]], 0)
tf.concat([{a:*1+}, {a}], {@a})
tf.stack([{a:*}, {b:*}], {=0|-1})
tf.stack([tf.reduce_sum({a:f1+}), tf.reduce_max({a})])
tf.unstack({a:*2+}, axis=-1)[{=0|-1}]
tf.split({a:*1+}, {=2|3}, axis={@a})[{=0|-1}]
tf.boolean_mask({a:*1+}, {m:b1})
tf.boolean_mask({a:*2+}, {m:b2})
tf.where({m:b1})[:, 0]
tf.where({m:b1+})
tf.unique({a:i1})[{=0|1}]
tf.unique_with_counts({a:i1})[2]
tf.sort({a:f1+}, {@a})
tf.sort({a:i1+}, {@a}, direction="DESCENDING")
tf.argsort({a:f1+}, {@a})
tf.argsort({a:i1}, stable=True)
tf.math.top_k({a:f1+}, {=1|2})[{=0|1}]
tf.gather({a:*1+}, {i:i1+}, axis={@a})
tf.gather({a:*1+}, {i:i1})
tf.gather({a:*2+}, {i:i1}, batch_dims=1)
tf.gather({a:*2+}, {i:i2}, batch_dims=1)
tf.gather({a:*1+}, tf.abs({i:i1}) % tf.shape({a})[{@a}], axis={@a})
tf.gather_nd({a:*2+}, tf.stack([tf.range(tf.shape({i:i1})[0]), {i}], 1))
tf.one_hot({i:i1+}, {=4|5}, axis={=0|-1}, dtype=tf.float64)
tf.reverse({a:*1+}, [{@a}])
tf.roll({a:*1+}, {=1|-1|2}, {@a})
tf.matmul({a:f2}, {b:f2})
tf.matmul({a:f2}, {b:f2}, transpose_a=True)
tf.matmul({a:f2}, {b:f2}, transpose_b=True)
tf.matmul({a:f2}, {a}, transpose_{=a|b}=True)
tf.matmul({a:f3}, {b:f3}, transpose_b=True)
tf.linalg.matvec({a:f2+}, {b:f1})
tf.einsum("bij,bik->{=bjk|jk|kj}", {a:f3}, {b:f3})
tf.einsum("bi,bj->{=bij|ij|b}", {a:f2}, {b:f2})
tf.einsum("bi,ci->{=bc|cb|c}", {a:f2}, {b:f2})
tf.einsum("btc,cd->{=btd|bd|dt}", {a:f3}, {b:f2})
tf.tensordot({a:f1+}, {b:f1+}, 1)
tf.tensordot({a:f1+}, {b:f1+}, [[0], [0]])
tf.repeat({a:*1+}, 2, axis={@a})
tf.tile({a:*2}, [{=2, 1|1, 2|2, 2}])
tf.tile({a:*1}, [{=2|3}])
tf.meshgrid({a:*1}, {b:*1})[{=0|1}]
{a:f1}[:, tf.newaxis] - {a}[tf.newaxis]
{a:f2}[:, tf.newaxis] - {a}[tf.newaxis]
tf.zeros_like({a:*})
tf.ones_like({a:*})
tf.pad({a:*2}, [[{=0, 0|1, 0|0, 1}], [1, 1]])
tf.linalg.diag_part({a:f2})
tf.linalg.set_diag({a:f2}, {b:f1})
tf.ensure_shape({a:*1+}, [None] * {a}.shape.rank)
tf.random.stateless_uniform(tf.shape({a:f1+}), [1, {=2|3}], dtype=tf.float64)
tf.random.stateless_normal([B, 2], [4, 5], dtype=tf.float64)
tf.random.stateless_uniform([B], [{n:i0}, 7], dtype=tf.float64)
tf.raw_ops.Mul(x={a:f1+}, y={a})
tf.searchsorted(tf.sort({a:f1}), {b:f1})
tf.dynamic_partition({a:f1+}, tf.cast({m:b1}, tf.int32), 2)[{=0|1}]
tf.dynamic_stitch([tf.range(tf.shape({a:f1+})[0])], [{a}])
tf.nn.conv1d({a:f3}, {b:f2}[tf.newaxis], 1, "SAME")
tf.nn.max_pool1d({a:f3}, 2, 1, "VALID")
tf.identity({a:*})
"""

LARGE = """
tf.reduce_{=max|min|sum|prod}({a:g1})
{a:g1}[{=0|-1}]
{a:g} {=+|-|*|//|%} {=2|3|7}
{a:g} {=+|-|*} {b:g}
{a:g1} - {b:g0}
tf.{=abs|negative|sign}({a:g})
tf.{=maximum|minimum}({a:g}, 3)
tf.cast({a:g}, tf.{=int8|uint8|int32|uint32|int64|float32})
tf.cast(tf.cast({a:g}, tf.{=int8|uint8|int32|uint32|uint64}) {=+ 1|* 3|}, tf.{=int32|int64})
tf.cast({a:i} * 70001, tf.{=int32|int64})
tf.range({a:g0}, {a} + tf.cast(B, {a}.dtype))
tf.range({a:g0}, {a} + {=2|3} * tf.cast(B, {a}.dtype), {=2|3})
tf.range({a:g0} {=+ 1|* 3|// 2}, {a} {=+ 1|* 3|// 2} + tf.cast(B, {a}.dtype))
x[:, {=|:}{a:g0}{=|:}, {=0|:}]
tf.roll({a:*1+}, {b:g0}, 0)
tf.fill([B], {a:g0})
tf.stack([{a:g0}, {b:g0}])
{a:g1} {=>|<|==} {b:g0}
tf.cond({a:g0} > 0, lambda: {b:f}, lambda: 2.0 * {b})
tf.where({m:b1}, {a:g1}, {b:g0})
"""

UPDATES = """
tf.convert_to_tensor(w.assign_{=add|sub}(0.1 * tf.tanh({a:f1})))
tf.convert_to_tensor(u.assign_{=add|sub}(0.1 * tf.tanh({a:f2})))
tf.convert_to_tensor(w.assign(tf.tanh(tf.reduce_{=sum|mean|max}({a:f2}, 0))))
tf.identity({=w|u})
"""

GROUPS = {
    COUNTS: 4,
    USES_OF_COUNTS: 5,
    REDUCTIONS: 3,
    ELEMENTWISE: 2,
    SHAPES: 3,
    LARGE: 2,
    UPDATES: 1,
}
"""How often an operation of a group is drawn. A line that is indented continues the one before."""
