; ModuleID = "strips_f32_avx2"
target triple = "unknown-unknown-unknown"

define internal void @zero(ptr %a0, i64 %a1) noinline nounwind {
entry:
  br label %body
body:
  %v1 = icmp slt i64 0, %a1
  br i1 %v1, label %loop, label %done
loop:
  %v2 = phi i64 [0, %body], [%v4, %loop]
  %v3 = getelementptr float, ptr %a0, i64 %v2
  store <8 x float> zeroinitializer, ptr %v3, align 4
  %v4 = add nsw i64 %v2, 8
  %v5 = icmp slt i64 %v4, %a1
  br i1 %v5, label %loop, label %done
done:
  ret void
}

define internal void @copy(ptr noalias %a0, ptr noalias %a1, i64 %a2) noinline nounwind {
entry:
  br label %body
body:
  %v1 = and i64 %a2, -8
  %v2 = icmp slt i64 0, %v1
  br i1 %v2, label %loop, label %done
loop:
  %v3 = phi i64 [0, %body], [%v7, %loop]
  %v4 = getelementptr float, ptr %a1, i64 %v3
  %v5 = load <8 x float>, ptr %v4, align 4
  %v6 = getelementptr float, ptr %a0, i64 %v3
  store <8 x float> %v5, ptr %v6, align 4
  %v7 = add nsw i64 %v3, 8
  %v8 = icmp slt i64 %v7, %v1
  br i1 %v8, label %loop, label %done
done:
  %v9 = and i64 %a2, -4
  %v10 = icmp slt i64 %v1, %v9
  br i1 %v10, label %loop.2, label %done.2
loop.2:
  %v11 = phi i64 [%v1, %done], [%v15, %loop.2]
  %v12 = getelementptr float, ptr %a1, i64 %v11
  %v13 = load <4 x float>, ptr %v12, align 4
  %v14 = getelementptr float, ptr %a0, i64 %v11
  store <4 x float> %v13, ptr %v14, align 4
  %v15 = add nsw i64 %v11, 4
  %v16 = icmp slt i64 %v15, %v9
  br i1 %v16, label %loop.2, label %done.2
done.2:
  %v17 = icmp slt i64 %v9, %a2
  br i1 %v17, label %loop.3, label %done.3
loop.3:
  %v18 = phi i64 [%v9, %done.2], [%v22, %loop.3]
  %v19 = getelementptr float, ptr %a1, i64 %v18
  %v20 = load float, ptr %v19, align 4
  %v21 = getelementptr float, ptr %a0, i64 %v18
  store float %v20, ptr %v21, align 4
  %v22 = add nsw i64 %v18, 1
  %v23 = icmp slt i64 %v22, %a2
  br i1 %v23, label %loop.3, label %done.3
done.3:
  ret void
}
